package hub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// passingTopic is where nodes send each other publications with
// Attributes.SkipHistory.
const passingTopic = "hub.passing"

// passing is such a publication but for its payload, which follows after a line end.
type passing struct {
	Channel    string          `json:"channel"`
	Key        string          `json:"key,omitempty"`
	Time       int64           `json:"time"`
	Attributes json.RawMessage `json:"attributes,omitempty"`
}

// pass brings p to those who follow its channel now, on all nodes, and
// stores nothing: the message has no offset. On this node it keeps its place among
// what is published here; between nodes it may overtake, or be overtaken by, what
// goes through the log, and it may be lost, as the bus says.
func (h *Hub) pass(p Publication) error {
	now := time.Now().UnixMilli()
	head, err := json.Marshal(passing{Channel: p.Channel, Key: p.Key, Time: now, Attributes: p.Attributes.AppendTo(nil)})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadAttributes, err)
	}
	head = append(head, '\n')
	if err := h.bus.Broadcast(passingTopic, append(head, p.Data...)); err != nil {
		return err
	}
	m := &Message{Time: now}
	p.Fill(m)
	h.deliver(m)
	return nil
}

// passed receives a publication that another node passed on.
func (h *Hub) passed(from string, data []byte) {
	head, payload, ok := bytes.Cut(data, []byte("\n"))
	var in passing
	if from == h.bus.Node() || !ok || json.Unmarshal(head, &in) != nil || CheckChannel(in.Channel) != nil {
		return
	}
	a, err := ParseAttributes(in.Attributes)
	if err != nil {
		return
	}
	h.deliver(&Message{Channel: in.Channel, Key: in.Key, Data: bytes.Clone(payload), Attributes: a, Time: in.Time})
}
