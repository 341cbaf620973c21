package access

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

var (
	protocolNames = [protocols]string{"native", "hold", "centrifuge", "centrifuge api", "mercure", "pusher", "pusher api"}
	opNames       = [ops]string{"read", "publish", "presence", "history"}
	classNames    = [classes]string{"plain", "users", "token", "signed", "signed-in", "recording"}
	verdictNames  = [...]string{"refused", "public", "full"}
)

func (p Protocol) String() string { return protocolNames[p] }
func (o Op) String() string       { return opNames[o] }
func (c Class) String() string    { return classNames[c] }
func (v Verdict) String() string  { return verdictNames[v] }

// MarshalText writes the name.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// MarshalText writes the name.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// MarshalText writes the name.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// MarshalText writes the name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// A Row is what every kind of caller may do with one class of channels by one protocol.
type Row struct {
	Namespace string             `json:"namespace"`
	Class     Class              `json:"class"`
	Channel   string             `json:"channel"` // an example, as the hub names it
	Op        Op                 `json:"operation"`
	By        Protocol           `json:"protocol"`
	Verdicts  map[string]Verdict `json:"callers"` // by Callers' names; what cannot be is left out
}

// A Kind is a representative caller for the table.
type Kind struct {
	Name string
	// Text describes it in the table.
	Text string
	// caller makes it for a channel.
	caller func(channel string) Caller
	// by are the protocols by which there are such callers; nil means all.
	by []Protocol
}

// Kinds are the representative callers, from the least credentials to the most. Those
// with a grant have it for the channel by its name, wildcards by "**".
func Kinds() []Kind {
	identity := func(subject string, list ...string) *auth.Identity {
		p, err := auth.CompilePatterns(list)
		if err != nil {
			panic("a pattern of the table cannot be: " + err.Error())
		}
		id := auth.Client(subject, &p, &p)
		return &id
	}
	always := func(c Caller) func(string) Caller { return func(string) Caller { return c } }
	key, err := auth.Granted("backend", []string{"**"}, []string{"**"}, time.Time{})
	if err != nil {
		panic("the table's key cannot be: " + err.Error())
	}
	tokens := []Protocol{Native, Centrifuge, Mercure}
	weirs := []Protocol{Native, Centrifuge}
	return []Kind{
		{"anonymous", "anyone", always(Caller{}), []Protocol{Native, Centrifuge, Mercure, Pusher}},
		{"other user", "any user", always(Caller{Identity: identity("7")}), tokens},
		{"user", "its users", always(Caller{Identity: identity("42")}), weirs},
		{"wildcard", "grant of **", always(Caller{Identity: identity("7", "**")}), weirs},
		{"grant", "grant by name", func(ch string) Caller { return Caller{Identity: identity("7", ch)} }, weirs},
		{"joined", "subscribers", always(Caller{Identity: identity("7"), Joined: true}), []Protocol{Centrifuge}},
		{"proof", "proof", always(Caller{Identity: identity("7"), Proof: true}), []Protocol{Hold, Centrifuge, Mercure, Pusher}},
		{"api key", "API key", always(Caller{Identity: key}), []Protocol{Native, CentrifugeAPI}},
		{"server", "server key", always(Caller{Server: true}), []Protocol{CentrifugeAPI, PusherAPI}},
	}
}

// recorded is a name that recordings have.
const recorded = recordingMark + "AAAAAAAAAAAAAAAAAAAAAAAA"

// Examples returns a channel of each class that the namespace has.
func (m *Model) Examples(namespace string) []string {
	prefix := ""
	if namespace != hub.DefaultNamespace {
		prefix = namespace + ":"
	}
	seen := map[Class]bool{}
	var list []string
	for _, name := range []string{"news", "#42", "room#42,43", "$news", "private-news", "presence-news", "private-encrypted-news", "cache-news", "#server-to-user-42", recorded} {
		ch := prefix + name
		c := m.ClassOf(ch)
		if c == Plain && seen[c] || c == Users && strings.HasSuffix(ch, protocol.UserPrefix+"42") {
			continue
		}
		seen[c] = true
		list = append(list, ch)
	}
	return list
}

// serves reports whether the node has the protocol for a namespace, and it the operation.
func (m *Model) serves(by Protocol, namespace string, op Op) bool {
	if by == Mercure && op > Publish {
		return false // its list of subscriptions is a topic of its own
	}
	switch by {
	case Centrifuge, CentrifugeAPI:
		return m.rules.Load().cfg.Centrifuge != nil
	case Mercure:
		return m.rules.Load().cfg.Mercure != nil && m.rules.Load().cfg.Mercure.Namespace == namespace
	case Pusher, PusherAPI:
		return m.rules.Load().cfg.Pusher[namespace]
	default:
		return true
	}
}

// Table calls Decide for every class of channels of the namespaces, every operation,
// protocol and kind of caller.
func (m *Model) Table(namespaces []hub.Namespace) []Row {
	kinds := Kinds()
	var rows []Row
	for _, ns := range namespaces {
		for _, ch := range m.Examples(ns.Name) {
			for op := range ops {
				for by := range protocols {
					if !m.serves(by, ns.Name, op) {
						continue
					}
					rows = append(rows, m.row(kinds, ns.Name, ch, op, by))
				}
			}
		}
	}
	return rows
}

func (m *Model) row(kinds []Kind, namespace, channel string, op Op, by Protocol) Row {
	r := Row{Namespace: namespace, Class: m.ClassOf(channel), Channel: channel, Op: op, By: by, Verdicts: map[string]Verdict{}}
	for _, k := range kinds {
		if slices.Contains(k.by, by) && m.connects(by, k) && (k.Name != "joined" || op != Read) {
			r.Verdicts[k.Name] = m.Decide(by, op, channel, k.caller(channel))
		}
	}
	return r
}

// connects reports whether a caller can come by the protocol at all.
func (m *Model) connects(by Protocol, k Kind) bool {
	return by != Centrifuge || k.Name != "anonymous" || m.rules.Load().cfg.Centrifuge.Anonymous
}

// weaker are the kinds whose right implies that of another: anyone's is everybody's.
var weaker = map[string][]string{
	"other user": {"anonymous"}, "user": {"anonymous", "other user"}, "wildcard": {"anonymous", "other user"},
	"grant": {"anonymous", "other user", "wildcard"}, "joined": {"anonymous", "other user"}, "proof": {"anonymous", "other user"},
}

// Text is the cell of a row: the least that a caller needs, "" for none. "(public)"
// means that private messages are not included.
func (r *Row) Text() string {
	var words []string
	for _, k := range Kinds() {
		v := r.Verdicts[k.Name]
		implied := slices.ContainsFunc(weaker[k.Name], func(w string) bool { return r.Verdicts[w] >= v })
		if v == Refused || implied || k.Name == "user" && r.Class != Users {
			continue
		}
		if v == Public {
			words = append(words, k.Text+" (public)")
		} else {
			words = append(words, k.Text)
		}
	}
	return strings.Join(words, ", ")
}

// A Finding is a guarded channel that callers reach who are not meant.
type Finding struct {
	Row
	// Caller is the kind of caller.
	Caller string `json:"caller"`
}

// Findings returns the rows of guarded classes that let callers in who are neither
// named, nor have a grant, nor a proof.
func Findings(rows []Row) []Finding {
	var list []Finding
	for _, r := range rows {
		if r.Class == Plain {
			continue
		}
		for _, k := range []string{"anonymous", "other user"} {
			if r.Verdicts[k] != Refused {
				list = append(list, Finding{r, k})
				break
			}
		}
	}
	return list
}

// String reports what is wrong, and where.
func (f Finding) String() string {
	who := "clients without a token"
	if f.Caller != "anonymous" {
		who = "any user"
	}
	does := map[Op]string{Read: "read", Publish: "publish to", Presence: "see who is on", History: "read the history of"}[f.Op]
	return fmt.Sprintf("%s can %s channels such as %q by %s, though they are not meant: class %s", who, does, f.Channel, f.By, f.Class)
}
