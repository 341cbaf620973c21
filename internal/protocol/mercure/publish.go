package mercure

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// servePublish finds out who publishes.
func (s *Server) servePublish(r socket.Request) {
	d := s.serve.Default()
	if !r.AdmitPage() {
		s.refuse(r, d, badOrigin)
		return
	}
	cred := s.tokens.credential(r, queryToken(r), d, false)
	if !cred.has {
		s.refuse(r, d, noToken)
		return
	}
	if header, _, ok := protocol.Split(cred.token); ok {
		if of, ok := s.tokens.dialect(header); ok {
			d = of
		}
	}
	if cred.cookie && !s.tokens.mayPublishFrom(r) {
		s.refuse(r, d, notGranted)
		return
	}
	if g, ok := s.tokens.cached(cred.token, publisher); ok {
		s.publish(r, g)
		return
	}
	var g *grant
	var why *refusal
	r.Do(func(ctx context.Context) { g, why = s.tokens.verify(ctx, cred.token, publisher) }, func() {
		if why != nil {
			s.refuse(r, d, why)
			return
		}
		s.publish(r, g)
	})
}

// publish stores the update of who g is.
func (s *Server) publish(r socket.Request, g *grant) {
	d := g.claims.Dialect
	if !isForm(r.Header("Content-Type")) {
		why := &refusal{status: http.StatusUnsupportedMediaType, text: "publish application/x-www-form-urlencoded"}
		if d == protocol.Draft07 {
			why.status = http.StatusBadRequest // its hubs see a form without fields
		}
		s.refuse(r, d, why)
		return
	}
	u, perr := protocol.ParseUpdate(string(r.Body()), d, s.conf().cfg.Path)
	if perr != nil {
		s.counts.refused.Add(1)
		s.refuse(r, d, malformed(perr))
		return
	}
	for _, t := range u.Topics {
		if !g.mayPublish(s, t) {
			s.counts.refused.Add(1)
			s.refuse(r, d, notGranted)
			return
		}
	}
	channels, p := s.publication(u)
	done := func(at hub.Position, err error) {
		if err != nil {
			s.counts.refused.Add(1)
			r.Fail(wire.ErrorOf(err))
			return
		}
		s.counts.published.Add(1)
		id := p.Attributes.ID
		if id == "" {
			id = at.String()
		}
		r.Answer(http.StatusOK, textPlain, []byte(id))
	}
	if len(channels) == 1 {
		p.Channel = channels[0]
		r.Publish(p, done)
		return
	}
	r.PublishTopics(channels, p, done)
}

// publication returns what goes to the hub, and the channels it goes to.
func (s *Server) publication(u *protocol.Update) (channels []string, p hub.Publication) {
	a := &hub.Attributes{ID: u.ID, Event: u.Type, Retry: u.Retry, Private: u.Private, Payload: hub.Text}
	for _, t := range u.Topics {
		ch, long := channelOf(s.conf().cfg.Namespace, t)
		channels = append(channels, ch)
		if long != "" {
			if a.Tags == nil {
				a.Tags = make(map[string]string)
			}
			a.Tags[long] = t
		}
	}
	data := []byte(u.Data)
	if json.Valid(data) {
		a.Payload = hub.JSON // so that other protocols need not wrap it
	}
	if a.ID == "" && s.durability() == hub.None {
		a.ID = newURN() // there is no position to go by
	}
	return channels, hub.Publication{Data: data, Attributes: a, Checked: a.ID == ""}
}

// newURN returns a random UUID (RFC 9562 §5.4) as a URN.
func newURN() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return "urn:uuid:" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
