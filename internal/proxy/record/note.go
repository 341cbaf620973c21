package record

import (
	"encoding/json"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A note is a message of an index channel.
type note struct {
	Mark  mark   `json:"recording"`
	Nonce string `json:"nonce"`
	// Of a start: which recording of the index it is, who may attach, by which fields
	// that one is known, and the process that records.
	Number   int      `json:"number,omitempty"`
	Owner    string   `json:"owner,omitempty"`
	By       []string `json:"by,omitempty"`
	Instance string   `json:"instance,omitempty"`
	// At is the position from which on a client has everything. Of an end it is that of
	// the last event, as many clients take no id from a block without data; of a broken
	// one that of the last record, which is an event.
	At string `json:"at,omitempty"`
	// Cause is why it is broken.
	Cause string `json:"cause,omitempty"`
}

type mark string

const (
	markStart     mark = "start"  // the backend is about to be asked
	markOpen      mark = "open"   // its reply is an event stream
	markHeartbeat mark = "beat"   // it continues
	markEnd       mark = "end"    // it was complete
	markBroken    mark = "broken" // it was not
	markVoid      mark = "void"   // there is no recording
)

func (n *note) bytes() []byte {
	b, err := json.Marshal(n)
	if err != nil {
		panic("a note cannot be marshalled: " + err.Error())
	}
	return b
}

// A generation is one recording of an index, by its notes.
type generation struct {
	nonce, instance string
	number          int
	owner           Owner
	start           hub.Position
	last            hub.Position // of an ended or broken one: note.At
	state           mark
	alive           time.Time // when it last gave a sign
	burying         bool      // its last record is being written for it
}

// finished reports whether nothing is added to it any more.
func (g *generation) finished() bool {
	return g.state == markEnd || g.state == markBroken || g.state == markVoid
}

// apply takes a note into the list of generations, of which it keeps the newest.
func apply(gens []*generation, m *hub.Message) []*generation {
	var n note
	if json.Unmarshal(m.Data, &n) != nil || n.Nonce == "" {
		return gens // not ours
	}
	if n.Mark == markStart {
		gens = append(gens, &generation{nonce: n.Nonce, instance: n.Instance, number: n.Number, owner: Owner{n.Owner, n.By},
			start: m.Position(), state: markStart, alive: m.At()})
		if len(gens) > maxGenerations {
			gens = gens[1:]
		}
		return gens
	}
	g := find(gens, n.Nonce)
	if g == nil || g.finished() {
		return gens
	}
	g.alive = m.At()
	switch n.Mark {
	case markOpen, markVoid:
		g.state = n.Mark
	case markEnd, markBroken:
		g.state = n.Mark
		g.last, _ = hub.ParsePosition(n.At)
	}
	return gens
}

const maxGenerations = 16

func find(gens []*generation, nonce string) *generation {
	for _, g := range gens {
		if g.nonce == nonce {
			return g
		}
	}
	return nil
}

// holding returns the generation that a position lies in.
func holding(gens []*generation, at hub.Position) *generation {
	for i := len(gens) - 1; i >= 0; i-- {
		if g := gens[i]; g.start.Epoch == at.Epoch && g.start.Offset <= at.Offset {
			return g
		}
	}
	return nil
}
