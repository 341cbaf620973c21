package pusher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// largeBody is from where on a call is checked and read on a goroutine: the owner of
// the connection has others to serve.
const largeBody = 32 << 10

// call is a REST call whose signature holds.
type call struct {
	r      socket.Request
	app    *app
	params []protocol.Param
}

// restAPI are the calls of the applications, below /apps.
type restAPI struct{ *Server }

// serve serves /apps/{id}/….
func (s restAPI) serve(r socket.Request) {
	parts := strings.Split(strings.TrimPrefix(r.Path(), "/apps/"), "/")
	for i, p := range parts {
		plain, err := url.PathUnescape(p)
		if err != nil {
			fail(r, http.StatusBadRequest, "the path is not well escaped", "")
			return
		}
		parts[i] = plain
	}
	a := s.conf().byID[parts[0]]
	if a == nil {
		fail(r, http.StatusNotFound, fmt.Sprintf("there is no app with id %q", wire.Printable(parts[0], 40)), "see pusher.apps in the configuration")
		return
	}
	signed := protocol.Request{Method: r.Method(), Path: r.Path(), Query: r.Query(), Body: r.Body()}
	if len(signed.Body) < largeBody {
		params, err := protocol.Verify(signed, a.Key, a.secret, time.Now())
		s.checked(&call{r, a, params}, parts[1:], err)
		return
	}
	var params []protocol.Param
	var err error
	r.Do(func(context.Context) {
		params, err = protocol.Verify(signed, a.Key, a.secret, time.Now())
	}, func() { s.checked(&call{r, a, params}, parts[1:], err) })
}

// checked continues with a call when its signature was evaluated.
func (s restAPI) checked(c *call, parts []string, err error) {
	if err != nil {
		s.counts.refused.Add(1)
		fail(c.r, http.StatusUnauthorized, "authentication: "+err.Error(), "the signature is over METHOD, path and sorted query, with the app's secret")
		return
	}
	if !c.app.Enabled.On() {
		fail(c.r, http.StatusForbidden, "the app is disabled", "")
		return
	}
	at := func(method string, pattern ...string) bool {
		if len(parts) != len(pattern) || c.r.Method() != method {
			return false
		}
		for i, p := range pattern {
			if p != "*" && p != parts[i] || parts[i] == "" {
				return false
			}
		}
		return true
	}
	const get, post = http.MethodGet, http.MethodPost
	switch {
	case at(post, "events"):
		s.events(c)
	case at(post, "batch_events"):
		s.batch(c)
	case at(get, "channels"):
		s.channels(c)
	case at(get, "channels", "*"):
		s.channel(c, parts[1])
	case at(get, "channels", "*", "users"):
		s.users(c, parts[1])
	case at(post, "users", "*", "events"):
		s.userEvent(c, parts[1])
	case at(post, "users", "*", "terminate_connections"):
		if err := s.terminate(c.app, parts[1]); err != nil {
			c.r.Fail(wire.ErrorOf(err))
			return
		}
		c.answer([]byte("{}"))
	default:
		fail(c.r, http.StatusNotFound, "there is no such call", "POST events, batch_events, users/<id>/events, users/<id>/terminate_connections; GET channels, channels/<name>, channels/<name>/users")
	}
}

func fail(r socket.Request, status int, message, hint string) {
	r.Fail(&wire.Error{Status: status, Message: message, Hint: hint})
}

func (c *call) answer(body []byte) { c.r.Answer(http.StatusOK, "application/json", body) }

func (c *call) json(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		fail(c.r, http.StatusInternalServerError, "internal error", "")
		return
	}
	c.answer(b)
}

// facts is what is said of a channel.
type facts struct {
	Occupied          *bool  `json:"occupied,omitempty"`
	UserCount         *int   `json:"user_count,omitempty"`
	SubscriptionCount *int   `json:"subscription_count,omitempty"`
	Cache             *cache `json:"cache,omitempty"`
}

// cache is the last event of a cache channel.
type cache struct {
	Event string `json:"event"`
	Data  string `json:"data"`
	TTL   int64  `json:"ttl"`
}

// wanted is a call's info, a list of words.
type wanted struct{ users, subscriptions, cache bool }

func parseInfo(list string) (w wanted, err error) {
	for word := range strings.SplitSeq(list, ",") {
		switch strings.TrimSpace(word) {
		case "":
		case "user_count":
			w.users = true
		case "subscription_count":
			w.subscriptions = true
		case "cache":
			w.cache = true
		default:
			return w, fmt.Errorf("info: %q is none of user_count, subscription_count and cache", wire.Printable(word, 40))
		}
	}
	return w, nil
}

// facts gathers what is wanted about a channel, without its cache.
func (s restAPI) facts(a *app, name string, w wanted) facts {
	var f facts
	p, ch := s.deps.Presence, a.channel(name)
	if w.users && protocol.KindOf(name).Is(protocol.Presence) {
		_, n := p.Count(ch)
		f.UserCount = &n
	}
	if w.subscriptions {
		n := p.Subscriptions(ch, presence.Pusher)
		f.SubscriptionCount = &n
	}
	return f
}

// channels serves GET /apps/{id}/channels.
func (s restAPI) channels(c *call) {
	prefix := protocol.Get(c.params, "filter_by_prefix")
	w, err := parseInfo(protocol.Get(c.params, "info"))
	switch {
	case err != nil:
		fail(c.r, http.StatusBadRequest, err.Error(), "")
		return
	case w.users && !strings.HasPrefix(prefix, "presence-"):
		fail(c.r, http.StatusBadRequest, "info=user_count is for presence channels alone", "add filter_by_prefix=presence-")
		return
	}
	found := map[string]facts{}
	c.r.Do(func(context.Context) {
		list := s.deps.Presence.Channels(func(channel string) bool {
			a, name := s.split(channel)
			return a == c.app && channel[0] != 0 && strings.HasPrefix(name, prefix) &&
				protocol.CheckChannel(name) == nil && !protocol.KindOf(name).Is(protocol.User)
		})
		for _, info := range list {
			if info.Subscriptions[presence.Pusher] == 0 {
				continue
			}
			var f facts
			if w.users {
				f.UserCount = &info.Users
			}
			if w.subscriptions {
				f.SubscriptionCount = &info.Subscriptions[presence.Pusher]
			}
			found[channelOf(info.Channel)] = f
		}
	}, func() { c.json(map[string]any{"channels": found}) })
}

// channel serves GET /apps/{id}/channels/{name}.
func (s restAPI) channel(c *call, name string) {
	w, err := parseInfo(protocol.Get(c.params, "info"))
	if err == nil {
		err = protocol.CheckChannel(name)
	}
	kind := protocol.KindOf(name)
	switch {
	case err != nil:
	case w.users && !kind.Is(protocol.Presence):
		err = errors.New("info=user_count is for presence channels alone")
	case w.cache && !kind.Is(protocol.Cache):
		err = errors.New("info=cache is for cache channels alone")
	}
	if err != nil {
		fail(c.r, http.StatusBadRequest, err.Error(), "")
		return
	}
	if !s.mayCall(access.Presence, c.app.channel(name)) {
		fail(c.r, http.StatusForbidden, "the channel is not for this API", "")
		return
	}
	f := s.facts(c.app, name, w)
	occupied := s.deps.Presence.Subscriptions(c.app.channel(name), presence.Pusher) > 0
	f.Occupied = &occupied
	if !w.cache {
		c.json(f)
		return
	}
	c.r.Do(func(ctx context.Context) {
		var m *hub.Message
		if m, err = s.deps.Hub.Latest(ctx, c.app.channel(name)); err == nil {
			f.Cache = s.cacheOf(c.app, m)
		}
	}, func() {
		if err != nil && !errors.Is(err, hub.ErrNoMessage) {
			c.r.Fail(wire.ErrorOf(err))
			return
		}
		c.json(f)
	})
}

// cacheOf is what is said of the last event.
func (s restAPI) cacheOf(a *app, m *hub.Message) *cache {
	var e struct{ Event, Data string }
	if json.Unmarshal(appendEvent(nil, m, s.conf().cfg.DefaultEvent), &e) != nil {
		return nil
	}
	left := time.Duration(a.namespace(s.deps.Hub).HistoryTTL) - time.Since(m.At())
	return &cache{Event: e.Event, Data: e.Data, TTL: int64(max(0, left) / time.Second)}
}

// users serves GET /apps/{id}/channels/{name}/users.
func (s restAPI) users(c *call, name string) {
	if protocol.CheckChannel(name) != nil || !protocol.KindOf(name).Is(protocol.Presence) {
		fail(c.r, http.StatusBadRequest, "only presence channels have users", "")
		return
	}
	type user struct {
		ID string `json:"id"`
	}
	list := []user{}
	c.r.Do(func(context.Context) {
		for _, m := range membersOf(s.deps.Presence.Members(c.app.channel(name), 0)) {
			list = append(list, user{m.ID})
		}
	}, func() { c.json(map[string]any{"users": list}) })
}
