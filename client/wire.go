package client

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// envelope is everything the server sends as JSON: a message, or by its type a
// gap, the position at the start, the end.
type envelope struct {
	Type string `json:"type"`

	Channel string          `json:"channel"`
	ID      string          `json:"id"`
	Time    int64           `json:"time"`
	Key     string          `json:"key"`
	Data    json.RawMessage `json:"data"`

	Namespace string `json:"namespace"`
	From      string `json:"from"`
	To        string `json:"to"`

	Code   int    `json:"code"`
	Reason string `json:"reason"`
}

func parseEnvelope(b []byte) (envelope, error) {
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("event is not an envelope: %w", err)
	}
	return e, nil
}

// message makes a Message of an envelope without a type.
func (e *envelope) message() (*Message, error) {
	m := &Message{Channel: e.Channel, Key: e.Key, Data: e.Data}
	if e.Channel == "" || e.Data == nil {
		return nil, fmt.Errorf("envelope without channel or data")
	}
	if e.Time != 0 {
		m.Time = time.UnixMilli(e.Time)
	}
	if e.ID != "" {
		p, err := hub.ParsePosition(e.ID)
		if err != nil {
			return nil, fmt.Errorf("envelope: %w", err)
		}
		m.Position = Position{p.Epoch, p.Offset, p.Check}
	}
	return m, nil
}

// gap makes a Gap of a gap notice. A To that is not a position stays zero: the
// notice itself must not get lost over it.
func (e *envelope) gap() *Gap {
	g := &Gap{Namespace: e.Namespace, From: e.From, Reason: e.Reason}
	g.To = parsePosition(e.To)
	return g
}
