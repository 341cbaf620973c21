package centrifuge

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// proxies are the backends that are asked; nil where there is none.
type proxies struct {
	connect, refresh, subscribe, publish, subRefresh, rpc *backend
}

// A backend is queried by HTTP POST, in Centrifugo's form. Any goroutine.
type backend struct {
	cfg     Proxy
	headers []string // in lower case
	client  *http.Client
}

const (
	maxBackendConns  = 256
	maxBackendAnswer = 1 << 20
)

func newProxies(cfg *Proxies) proxies {
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			MaxConnsPerHost:     maxBackendConns,
			MaxIdleConnsPerHost: maxBackendConns / 4,
			IdleConnTimeout:     90 * time.Second,
			ForceAttemptHTTP2:   true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	make := func(p Proxy) *backend {
		if p.Endpoint == "" {
			return nil
		}
		b := &backend{cfg: p, client: client}
		for _, h := range p.HTTPHeaders {
			b.headers = append(b.headers, strings.ToLower(h))
		}
		return b
	}
	return proxies{
		connect: make(cfg.Connect), refresh: make(cfg.Refresh), subscribe: make(cfg.Subscribe),
		publish: make(cfg.Publish), subRefresh: make(cfg.SubRefresh), rpc: make(cfg.RPC),
	}
}

func (p *proxies) all() []*backend {
	list := []*backend{p.connect, p.refresh, p.subscribe, p.publish, p.subRefresh, p.rpc}
	return slices.DeleteFunc(list, func(b *backend) bool { return b == nil })
}

func (p *proxies) close() {
	for _, b := range p.all() {
		b.client.CloseIdleConnections()
	}
}

// forwards reports whether some backend is sent the header field.
func (x *settings) forwards(name string) bool { return slices.Contains(x.forwarded, name) }

// question is what a backend is asked.
type question struct {
	Client    string          `json:"client"`
	Transport string          `json:"transport"`
	Protocol  string          `json:"protocol"`
	Encoding  string          `json:"encoding"`
	User      string          `json:"user,omitempty"`
	Channel   string          `json:"channel,omitempty"`
	Method    string          `json:"method,omitempty"`
	Token     string          `json:"token,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	B64Data   string          `json:"b64data,omitempty"`
	Name      string          `json:"name,omitempty"`
	Version   string          `json:"version,omitempty"`
	Channels  []string        `json:"channels,omitempty"`
	Meta      json.RawMessage `json:"meta,omitempty"`

	headers map[string]string
}

// answer is what a backend says: one of the three.
type answer struct {
	Result     *result   `json:"result"`
	Error      *refusal  `json:"error"`
	Disconnect *farewell `json:"disconnect"`
}

type refusal struct {
	Code      uint32 `json:"code"`
	Message   string `json:"message"`
	Temporary bool   `json:"temporary"`
}

type farewell struct {
	Code   uint32 `json:"code"`
	Reason string `json:"reason"`
}

// result is what backends answer; each call has some of the members.
type result struct {
	User           string               `json:"user"`
	ExpireAt       int64                `json:"expire_at"`
	Expired        bool                 `json:"expired"`
	Info           json.RawMessage      `json:"info"`
	B64Info        string               `json:"b64info"`
	Data           json.RawMessage      `json:"data"`
	B64Data        string               `json:"b64data"`
	Channels       []string             `json:"channels"`
	Subs           map[string]subClaims `json:"subs"`
	Meta           json.RawMessage      `json:"meta"`
	Override       *override            `json:"override"`
	Tags           map[string]string    `json:"tags"`
	IdempotencyKey string               `json:"idempotency_key"`
	SkipHistory    bool                 `json:"skip_history"`

	info, data []byte
}

// errBackend is for a backend that did not answer as it should.
var errBackend = errors.New("backend")

// call puts a question. It waits.
func (b *backend) call(ctx context.Context, q *question) (*answer, error) {
	if b == nil { // a reload has taken it out meanwhile
		return nil, fmt.Errorf("%w: there is none any more", errBackend)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(b.cfg.Timeout))
	defer cancel()
	if !b.cfg.IncludeMeta {
		q.Meta = nil
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBackend, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.cfg.Endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBackend, err)
	}
	for name, value := range q.headers {
		if slices.Contains(b.headers, name) {
			req.Header.Set(name, value)
		}
	}
	for name, value := range b.cfg.StaticHeaders { // which the backend may go by: the client's do not count
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := b.client.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL, whose path may be a secret
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBackend, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxBackendAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errBackend, err)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w: status %d", errBackend, res.StatusCode)
	case len(text) > maxBackendAnswer:
		return nil, fmt.Errorf("%w: an answer of more than %d bytes", errBackend, maxBackendAnswer)
	}
	a := &answer{}
	if err := json.Unmarshal(text, a); err != nil {
		return nil, fmt.Errorf("%w: %w", errBackend, err)
	}
	return a, a.decode()
}

func (a *answer) decode() (err error) {
	r := a.Result
	if r == nil {
		return nil
	}
	if r.info, err = jsonOr64(r.Info, r.B64Info); err == nil {
		r.data, err = jsonOr64(r.Data, r.B64Data)
	}
	if err != nil {
		return fmt.Errorf("%w: base64: %w", errBackend, err)
	}
	return nil
}

// question starts one about the client.
func (s *session) question() *question {
	k, a := s.kind(), s.account
	q := &question{
		Client: s.clientID(), Transport: k.name, Protocol: k.enc.String(), Encoding: "json",
		User: a.user, Meta: a.meta,
	}
	if k.enc == protocol.Protobuf {
		q.Encoding = "binary"
	}
	if s.account.extras != nil {
		q.headers = s.account.extras.headers
	}
	return q
}

// carry gives q data of the client's: JSON if it can be.
func (q *question) carry(data []byte) {
	switch {
	case len(data) == 0:
	case protocol.Valid(data):
		q.Data = data
	default:
		q.B64Data = base64.StdEncoding.EncodeToString(data)
	}
}

// checkAnswer reports to the client what an answer refuses; ok means that there is a result.
// refuse says an error.
func (s *session) checkAnswer(a *answer, err error, refuse func(protocol.Error)) (r *result, ok bool) {
	switch {
	case err != nil:
		s.srv().counters.backendErrors.Add(1)
		s.srv().log.Warn("proxy", "conn", s.t.ID(), "err", err)
		refuse(protocol.ErrorInternal)
	case a.Disconnect != nil:
		s.disconnect(a.Disconnect.disconnection())
	case a.Error != nil:
		refuse(protocol.Error{Code: a.Error.Code, Message: a.Error.Message, Temporary: a.Error.Temporary})
	case a.Result == nil:
		return &result{}, true
	default:
		return a.Result, true
	}
	return nil, false
}

// disconnection is one that a backend chose. Codes that cannot appear in a close frame
// are the one without a code.
func (f *farewell) disconnection() protocol.Disconnection {
	if f.Code < 3000 || f.Code > 4999 {
		return protocol.DisconnectedForce
	}
	return protocol.Disconnection{Code: f.Code, Reason: trimReason(f.Reason)}
}

// trimReason cuts what does not fit into a close frame.
func trimReason(s string) string {
	s = strings.ToValidUTF8(s, "")
	if len(s) > 120 {
		s = strings.ToValidUTF8(s[:120], "")
	}
	return s
}

// connectByProxy has a backend say who the client is.
func (c *connect) connectByProxy() {
	srv := c.srv()
	q := c.question()
	q.carry(c.req.Data)
	q.Name, q.Version = c.req.Name, c.req.Version
	for i := range c.req.Subs {
		q.Channels = append(q.Channels, c.req.Subs[i].Channel)
	}
	var a *answer
	var err error
	c.work(func(ctx context.Context) { a, err = srv.conf().proxies.connect.call(ctx, q) }, func() {
		r, ok := c.checkAnswer(a, err, func(e protocol.Error) { c.refuse(&e, nil) })
		if !ok {
			return
		}
		x := c.mayChange()
		x.user, x.info, x.meta, x.expires = r.User, safe(r.info), r.Meta, unixTime(r.ExpireAt)
		x.byProxy = !x.expires.IsZero() && srv.conf().proxies.refresh != nil
		c.data = r.data
		for _, ch := range r.Channels {
			c.subs[ch] = subClaims{}
		}
		for ch, o := range r.Subs {
			c.subs[ch] = o
		}
		c.admit()
	})
}

// refreshByProxy requests a decision whether a connection whose time is up may continue.
func (s *session) refreshByProxy() {
	srv := s.srv()
	q := s.question()
	s.account.expires = srv.now().Add(time.Duration(srv.conf().cfg.ExpiredCloseDelay)) // not asked again until then
	var a *answer
	var err error
	ok := s.do(func(ctx context.Context) { a, err = srv.conf().proxies.refresh.call(ctx, q) }, func() {
		r, ok := s.checkAnswer(a, err, func(protocol.Error) {})
		switch {
		case !ok: // an unreachable backend ends no connection at once
		case r.Expired || r.ExpireAt != 0 && !srv.now().Before(unixTime(r.ExpireAt)):
			s.disconnect(protocol.DisconnectedExpired)
		default:
			if r.info != nil {
				s.account.info = safe(r.info)
			}
			if r.Meta != nil {
				s.account.meta = r.Meta
			}
			s.renew(unixTime(r.ExpireAt))
		}
	})
	if !ok {
		srv.counters.backendErrors.Add(1)
	}
}

// refreshByProxy requests a decision whether a subscription whose time is up may continue.
func (x *subscription) refreshByProxy() {
	s := x.s
	srv := s.srv()
	pl := x.plan.Value()
	o := x.owned()
	q := s.question()
	q.Channel = wireName(pl.name)
	o.expires = srv.now().Add(time.Duration(srv.conf().cfg.ExpiredCloseDelay))
	var a *answer
	var err error
	ok := s.do(func(ctx context.Context) { a, err = srv.conf().proxies.subRefresh.call(ctx, q) }, func() {
		if x.s != s || x.owned() != o {
			return
		}
		r, ok := s.checkAnswer(a, err, func(protocol.Error) {})
		switch {
		case !ok:
		case r.Expired || r.ExpireAt != 0 && !srv.now().Before(unixTime(r.ExpireAt)):
			x.expired()
		default:
			x.renew(unixTime(r.ExpireAt), safe(r.info))
		}
	})
	if !ok {
		srv.counters.backendErrors.Add(1)
	}
}

// subscribeByProxy requests a decision whether the client may subscribe.
func (s command) subscribeByProxy(w subscribeOptions, data []byte) {
	srv := s.srv()
	q := s.question()
	q.Channel = wireName(w.channel)
	q.carry(data)
	var a *answer
	var err error
	s.inOrder(func(ctx context.Context) { a, err = srv.conf().proxies.subscribe.call(ctx, q) }, func() {
		r, ok := s.checkAnswer(a, err, s.fail)
		if !ok {
			return
		}
		w.info, w.data, w.expires = safe(r.info), s.kind().fit(r.data), unixTime(r.ExpireAt)
		w.byProxy = !w.expires.IsZero() && w.ns.SubRefreshProxy
		r.Override.apply(&w)
		s.attach(w)
	})
}

// publishByProxy requests a decision whether the client may publish, and what.
func (s command) publishByProxy(channel string, ns *namespace, data []byte) {
	srv := s.srv()
	q := s.question()
	q.Channel = wireName(channel)
	q.carry(data)
	var a *answer
	var err error
	s.inOrder(func(ctx context.Context) { a, err = srv.conf().proxies.publish.call(ctx, q) }, func() {
		r, ok := s.checkAnswer(a, err, s.fail)
		if !ok {
			return
		}
		a := &hub.Attributes{
			Payload: payloadKind(data, s.kind().enc), Tags: r.Tags, Private: srv.deps.Access.Guarded(channel), SkipHistory: r.SkipHistory && ns.log,
		}
		if r.data != nil {
			data, a.Payload = r.data, payloadKind(r.data, protocol.Protobuf) // it is not checked yet
		}
		s.publishNow(hub.Publication{Channel: channel, Data: data, IdempotencyKey: r.IdempotencyKey, Publisher: "centrifuge:proxy:" + s.account.user}, a)
	})
}

// rpcByProxy has a backend answer a call.
func (s command) rpcByProxy(method string, data []byte) {
	srv := s.srv()
	q := s.question()
	q.Method = method
	q.carry(data)
	var a *answer
	var err error
	s.aside(func(ctx context.Context) { a, err = srv.conf().proxies.rpc.call(ctx, q) }, func() {
		if r, ok := s.checkAnswer(a, err, s.fail); ok {
			s.reply(&protocol.RPCResult{Data: s.kind().fit(r.data)})
		}
	})
}
