package nats

import (
	"strconv"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// headerAttributes holds what a publisher said besides the payload, as
// hub.Attributes writes it; most messages do not have it. What is longer than
// inlineAttributes follows the payload instead, because JetStream stores at
// most 64 KiB of headers: then the header is "+" and its length in bytes.
const (
	headerAttributes = "Weir-Attributes"
	inlineAttributes = 16 << 10
)

// pack puts attributes, which are not empty, into m.
func pack(m *natsgo.Msg, attributes []byte) {
	if m.Header == nil {
		m.Header = natsgo.Header{}
	}
	if len(attributes) <= inlineAttributes {
		m.Header[headerAttributes] = []string{string(attributes)}
		return
	}
	m.Header[headerAttributes] = []string{"+" + strconv.Itoa(len(attributes))}
	m.Data = append(append(make([]byte, 0, len(m.Data)+len(attributes)), m.Data...), attributes...)
}

// unpack returns the payload of m and its attributes as they were written.
func unpack(m *natsgo.Msg) (data, attributes []byte) {
	v := m.Header.Get(headerAttributes)
	if v == "" || v[0] != '+' {
		return m.Data, []byte(v)
	}
	n, err := strconv.Atoi(v[1:])
	if err != nil || n < 0 || n > len(m.Data) {
		return m.Data, nil
	}
	at := len(m.Data) - n
	return m.Data[:at:at], m.Data[at:]
}

// attributes reads what unpack returned. What no Weir wrote counts as none:
// the payload is worth delivering all the same.
func (s *logReader) attributes(b []byte) *hub.Attributes {
	if len(b) == 0 {
		return nil
	}
	a, err := hub.ParseAttributes(b)
	if err != nil {
		s.b.log.Warn("message with bad attributes", "namespace", s.opts.Load().LogName(), "err", err)
	}
	return a
}
