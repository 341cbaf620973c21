package centrifuge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/protocol/jsontext"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// apiCall is a call of the server API: all that the methods have among them.
type apiCall struct {
	Channel  string   `json:"channel"`
	Channels []string `json:"channels"`
	// publish, broadcast
	Data           json.RawMessage   `json:"data"`
	B64Data        string            `json:"b64data"`
	Tags           map[string]string `json:"tags"`
	IdempotencyKey string            `json:"idempotency_key"`
	Version        uint64            `json:"version"`
	VersionEpoch   string            `json:"version_epoch"`
	SkipHistory    bool              `json:"skip_history"`
	// subscribe, unsubscribe, disconnect, refresh
	User       string          `json:"user"`
	Client     string          `json:"client"`
	Session    string          `json:"session"`
	ExpireAt   int64           `json:"expire_at"`
	Expired    bool            `json:"expired"`
	Info       json.RawMessage `json:"info"`
	B64Info    string          `json:"b64info"`
	Recover    *position       `json:"recover_since"`
	Override   *override       `json:"override"`
	Whitelist  []string        `json:"whitelist"`
	Disconnect *farewell       `json:"disconnect"`
	// history
	Limit   int       `json:"limit"`
	Since   *position `json:"since"`
	Reverse bool      `json:"reverse"`
	// channels, rpc
	Pattern string          `json:"pattern"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	// batch
	Commands commands `json:"commands"`
	// room is how many bytes the result may take.
	room int
	// publisher is in whose name idempotency keys count.
	publisher string
}

// A caller is who calls the server API.
type caller struct {
	all bool           // has the key of this API
	who *auth.Identity // otherwise: has one of Weir's
}

// publisher is in whose name the caller's idempotency keys count.
func (who caller) publisher() string {
	if who.all {
		return "centrifuge:api_key"
	}
	return who.who.Publisher()
}

// An api is the server API of a Server, which backends call. Its methods may be called
// from any goroutine.
type api struct{ srv *Server }

// apiMethod returns the JSON of its result. It may wait.
type apiMethod func(a *api, ctx context.Context, c *apiCall) ([]byte, *protocol.Error)

// apiMethods are the methods, in the order in which a command of a batch that has
// several is searched. Batch is not one of them.
var apiMethods = []struct {
	name string
	call apiMethod
}{
	{"publish", (*api).publish},
	{"broadcast", (*api).broadcast},
	{"subscribe", (*api).subscribe},
	{"unsubscribe", (*api).unsubscribe},
	{"disconnect", (*api).disconnect},
	{"history", (*api).history},
	{"history_remove", (*api).historyRemove},
	{"presence", (*api).presence},
	{"presence_stats", (*api).presenceStats},
	{"info", (*api).info},
	{"rpc", rpc},
	{"refresh", (*api).refresh},
	{"channels", (*api).channels},
	{"map_publish", (*api).notAvailable},
	{"map_remove", (*api).notAvailable},
	{"map_read_state", (*api).notAvailable},
	{"map_read_stream", (*api).notAvailable},
	{"map_stats", (*api).notAvailable},
	{"map_clear", (*api).notAvailable},
	{"shared_poll_publish", (*api).notAvailable},
}

// method returns a method by its name; nil if there is none.
func method(name string) apiMethod {
	for i := range apiMethods {
		if apiMethods[i].name == name {
			return apiMethods[i].call
		}
	}
	return nil
}

// apiNames are all of them, batch too.
func apiNames() []string {
	names := []string{"batch"}
	for i := range apiMethods {
		names = append(names, apiMethods[i].name)
	}
	return names
}

// errorNotFound is the server API's word for a method that does not exist; clients are
// sent another one.
var errorNotFound = protocol.Error{Code: 104, Message: "not found"}

// serve answers a call of the server API.
func (a *api) serve(r socket.Request) {
	a.srv.counters.apiCalls.Add(1)
	who, ok := callerOf(a.srv, r)
	if !ok {
		r.Fail(&wire.Error{Status: http.StatusUnauthorized, Message: "no or wrong key", Hint: "send the key of centrifuge.api_key in X-API-Key"})
		return
	}
	name := strings.TrimPrefix(r.Path(), a.srv.conf().cfg.APIPrefix+"/")
	transport := a.srv.conf().cfg.APIErrorMode == "transport" || strings.EqualFold(r.Header("X-Centrifugo-Error-Mode"), "transport")
	body := r.Body()
	switch {
	case name != "batch" && method(name) == nil:
		r.Fail(&wire.Error{Status: http.StatusNotFound, Message: "no such method"})
		return
	case len(body) > 0 && !utf8.Valid(body):
		r.Fail(&wire.Error{Status: http.StatusBadRequest, Message: "the body is not UTF-8"})
		return
	}
	c := &apiCall{room: a.srv.conf().cfg.APIMaxAnswer}
	if len(body) > 0 {
		if err := json.Unmarshal(body, c); err != nil {
			r.Fail(&wire.Error{Status: http.StatusBadRequest, Message: "the body is not a JSON object of the method", Hint: err.Error()})
			return
		}
	}
	if name == "publish" {
		a.servePublish(r, who, c, transport)
		return
	}
	var text []byte
	status := http.StatusOK
	r.Do(func(ctx context.Context) {
		if name == "batch" {
			text = a.batch(ctx, who, c)
			return
		}
		out, e := a.call(ctx, who, name, c)
		text, status = apiAnswer(out, e, transport)
	}, func() { r.Answer(status, "application/json", text) })
}

// callerOf finds out who calls.
func callerOf(s *Server, r socket.Request) (caller, bool) {
	key := r.Header("X-API-Key")
	if key == "" {
		if scheme, v, ok := strings.Cut(r.Header("Authorization"), " "); ok && strings.EqualFold(scheme, "apikey") {
			key = strings.TrimSpace(v)
		}
	}
	if key == "" {
		key = query(r).Get("api_key")
	}
	if key == "" {
		return caller{}, false
	}
	sum := sha256.Sum256([]byte(key))
	if s.conf().hasKey && subtle.ConstantTimeCompare(sum[:], s.conf().apiKey[:]) == 1 {
		return caller{all: true}, true
	}
	who, ok := s.deps.Auth.APIKey([]byte(key))
	return caller{who: who}, ok
}

// call runs one method.
func (a *api) call(ctx context.Context, who caller, name string, c *apiCall) ([]byte, *protocol.Error) {
	f := method(name)
	switch {
	case f == nil:
		return nil, &errorNotFound
	case !who.may(a, name, c):
		return nil, &protocol.ErrorPermissionDenied
	case c.room < smallAnswer:
		return nil, tooLarge(a.srv)
	}
	c.publisher = who.publisher()
	out, e := f(a, ctx, c)
	if e == nil && len(out) > c.room {
		return nil, tooLarge(a.srv)
	}
	return out, e
}

// smallAnswer has room for what methods that change something answer for one channel:
// they are not called without, and so never done and answered with an error.
const smallAnswer = 512

// tooLarge is the error of an answer past the bound.
func tooLarge(s *Server) *protocol.Error {
	e := protocol.ErrorLimit
	e.Message += fmt.Sprintf(": the answer takes more than api_max_answer, %d bytes", s.conf().cfg.APIMaxAnswer)
	return &e
}

// servePublish answers a publish without a goroutine: it is the call that comes often.
func (a *api) servePublish(r socket.Request, who caller, c *apiCall, transport bool) {
	answer := func(out []byte, e *protocol.Error) {
		text, status := apiAnswer(out, e, transport)
		r.Answer(status, "application/json", text)
	}
	if !who.may(a, "publish", c) {
		answer(nil, &protocol.ErrorPermissionDenied)
		return
	}
	c.publisher = who.publisher()
	p, e := a.publication(c, c.Channel)
	if e != nil {
		answer(nil, e)
		return
	}
	r.Publish(p, func(at hub.Position, err error) {
		if err != nil {
			e := refusalOf(err, true)
			answer(nil, &e)
			return
		}
		answer(positionJSON(a.srv, at), nil)
	})
}

// apiAnswer is the body of an answer, and its status.
func apiAnswer(out []byte, e *protocol.Error, transport bool) ([]byte, int) {
	if e == nil {
		return append(append([]byte(`{"result":`), out...), '}'), http.StatusOK
	}
	if transport {
		return errorJSON(e), statusOf(e.Code)
	}
	return append(append([]byte(`{"error":`), errorJSON(e)...), '}'), http.StatusOK
}

func errorJSON(e *protocol.Error) []byte {
	b, _ := json.Marshal(struct {
		Code    uint32 `json:"code"`
		Message string `json:"message"`
	}{e.Code, e.Message})
	return b
}

// statusOf is the HTTP status of an error where one is wanted.
func statusOf(code uint32) int {
	switch code {
	case 101:
		return http.StatusUnauthorized
	case 102, 104:
		return http.StatusNotFound
	case 103:
		return http.StatusForbidden
	case 106, 107, 108:
		return http.StatusBadRequest
	case 111:
		return http.StatusTooManyRequests
	case 112:
		return http.StatusRequestedRangeNotSatisfiable
	case 113:
		return http.StatusConflict
	default:
		return http.StatusInternalServerError
	}
}

// maxBatch bounds the commands of one batch.
const maxBatch = 1000

// commands are those of a batch. What is past the bound is read no further than that
// it is there: an empty command takes three bytes on the wire, and a hundred times that
// in memory.
type commands []map[string]json.RawMessage

var errBatch = fmt.Errorf("more than %d commands", maxBatch)

// UnmarshalJSON implements json.Unmarshaler.
func (list *commands) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil:
		return nil
	case t != json.Delim('['):
		return errors.New("commands are no array")
	}
	for d.More() {
		if len(*list) == maxBatch {
			return errBatch
		}
		var one map[string]json.RawMessage
		if err := d.Decode(&one); err != nil {
			return err
		}
		*list = append(*list, one)
	}
	return nil
}

// batch runs several commands in their order. Each has its own reply, in the room that
// those before have left.
func (a *api) batch(ctx context.Context, who caller, c *apiCall) []byte {
	if len(c.Commands) == 0 {
		return []byte("{}")
	}
	out := []byte(`{"replies":[`)
	for i, one := range c.Commands {
		if i > 0 {
			out = append(out, ',')
		}
		name, result, e := a.batched(ctx, who, one, len(out))
		if e != nil {
			out = append(append(append(out, `{"error":`...), errorJSON(e)...), '}')
			continue
		}
		out = append(jsontext.AppendString(append(out, '{'), name), ':')
		out = append(append(out, result...), '}')
	}
	return append(out, ']', '}')
}

// batched runs one command: the first of the methods that it has.
func (a *api) batched(ctx context.Context, who caller, one map[string]json.RawMessage, written int) (string, []byte, *protocol.Error) {
	if one == nil {
		return "", nil, &protocol.ErrorBadRequest
	}
	for _, m := range apiMethods {
		params, ok := one[m.name]
		if !ok || string(params) == "null" {
			continue
		}
		c := &apiCall{room: a.srv.conf().cfg.APIMaxAnswer - written}
		if err := json.Unmarshal(params, c); err != nil {
			return "", nil, &protocol.ErrorBadRequest
		}
		out, e := a.call(ctx, who, m.name, c)
		return m.name, out, e
	}
	return "", nil, &errorNotFound
}
