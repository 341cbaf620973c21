package pusher

import (
	"encoding/json"
	"sync"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/websocket"
)

// topicTerminate is where nodes receive requests to end a user's connections.
const topicTerminate = "pusher.terminate"

// termination is the message there.
type termination struct {
	App  string `json:"app"`
	User string `json:"user"`
}

// users are the sessions of this node that have signed in. Any goroutine.
type users struct {
	mu     sync.Mutex
	byUser crowds
	// watchers are those who watch a user.
	watchers crowds
}

// crowds are sessions by a user's id.
type crowds map[string]map[*session]struct{}

func (u *users) init() { u.byUser, u.watchers = crowds{}, crowds{} }

func (w crowds) add(user string, s *session) {
	if w[user] == nil {
		w[user] = map[*session]struct{}{}
	}
	w[user][s] = struct{}{}
}

func (w crowds) remove(user string, s *session) {
	delete(w[user], s)
	if len(w[user]) == 0 {
		delete(w, user)
	}
}

// add takes s in, whose user has signed in and watches others.
func (u *users) add(user string, watched []string, s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.byUser.add(user, s)
	for _, id := range watched {
		u.watchers.add(id, s)
	}
}

func (u *users) remove(user string, watched []string, s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.byUser.remove(user, s)
	for _, id := range watched {
		u.watchers.remove(id, s)
	}
}

// sessions returns those of a user, or those who watch the user.
func (u *users) sessions(user string, watching bool) []*session {
	u.mu.Lock()
	defer u.mu.Unlock()
	crowd := u.byUser[user]
	if watching {
		crowd = u.watchers[user]
	}
	out := make([]*session, 0, len(crowd))
	for s := range crowd {
		out = append(out, s)
	}
	return out
}

// terminate ends the connections of a user on all nodes.
func (s *Server) terminate(a *app, user string) error {
	b, err := json.Marshal(termination{a.ID, user})
	if err != nil {
		return err
	}
	return s.deps.Bus.Broadcast(topicTerminate, b)
}

func (s *Server) onTerminate(_ string, data []byte) {
	var t termination
	if json.Unmarshal(data, &t) != nil {
		return
	}
	a := s.conf().byID[t.App]
	if a == nil {
		return
	}
	for _, c := range a.users.sessions(t.User, false) {
		c.t.Post(func() {
			if !c.gone && c.user != nil && c.user.ID == t.User {
				s.counts.terminated.Add(1)
				c.close(protocol.CloseUnauthorized, "the application ended this connection")
			}
		})
	}
}

// signin takes pusher:signin.
func (c *session) signin(data []byte) {
	var in protocol.Signin
	if err := protocol.Fields(data, &in); err != nil {
		c.deny("pusher:signin: its data has no auth and user_data")
		return
	}
	if !protocol.Equal(in.Auth, protocol.SignUser(c.app.Key, c.app.secret, c.id, in.UserData)) {
		c.deny("pusher:signin: auth is not the app's signature of socket_id::user::user_data")
		return
	}
	user, err := protocol.ParseUser(in.UserData)
	switch {
	case err != nil:
		c.deny("pusher:signin: " + err.Error())
		return
	case len(in.UserData) > c.s.conf().cfg.MaxMemberData || protocol.CheckChannel(protocol.UserPrefix+user.ID) != nil:
		c.deny("pusher:signin: user_data is too long")
		return
	}
	if revoked(c.s, user.ID) {
		c.deny("The user was revoked")
		return
	}
	if !c.app.Watchlists {
		user.Watchlist = nil
	}
	if len(user.Watchlist) > c.s.conf().cfg.MaxWatchlist {
		c.deny("pusher:signin: the watchlist has more users than max_watchlist")
		return
	}
	if c.user != nil && c.user.ID != user.ID {
		c.unsubscribe(protocol.UserPrefix + c.user.ID)
	}
	c.signout()
	c.user, c.authorized = &user, true
	c.app.users.add(user.ID, user.Watchlist, c)
	reply := append([]byte(`{"user_data":`), jsontext.AppendString(nil, in.UserData)...)
	c.event(protocol.EventSigninSuccess, "", append(reply, '}'))
	if !c.app.Watchlists {
		return
	}
	p := c.s.deps.Presence
	if err := p.Join(c.app.lobby, presence.Member{Client: c.id, User: user.ID}); err != nil {
		c.s.log.Warn("watchers of a signed-in user are not notified", "app", c.app.ID, "err", err)
	}
	var online []string
	c.online = map[string]bool{}
	for _, id := range user.Watchlist {
		if p.Has(c.app.lobby, id) && !c.online[id] {
			c.online[id] = true
			online = append(online, id)
		}
	}
	if len(online) > 0 {
		c.event(protocol.EventWatchlist, "", protocol.AppendWatchlist(nil, "online", online))
	}
}

// revoked reports whether an operator has revoked the user.
func revoked(s *Server, user string) bool { return s.deps.Revoked != nil && s.deps.Revoked(user) }

// signout forgets the user.
func (c *session) signout() {
	if c.user == nil {
		return
	}
	c.app.users.remove(c.user.ID, c.user.Watchlist, c)
	if c.app.Watchlists {
		c.s.deps.Presence.Leave(c.app.lobby, c.id)
	}
	c.user, c.online = nil, nil
}

// watchUsers is called by presence with anyone who has signed in or gone, on any node.
func (s *Server) watchUsers(a *app, events []presence.Event) {
	for _, e := range events {
		k := flap{channel: a.lobby, user: e.Member.User}
		switch e.Type {
		case presence.UserLeave:
			s.announced.went(k)
		case presence.UserJoin:
			if s.announced.came(k) {
				s.notifyWatchers(a, k.user, "online")
			}
		}
	}
}

// notifyWatchers notifies the sessions of this node that watch user.
func (s *Server) notifyWatchers(a *app, user, what string) {
	watching := a.users.sessions(user, true)
	if len(watching) == 0 {
		return
	}
	text := protocol.AppendEvent(nil, protocol.EventWatchlist, "", protocol.AppendWatchlist(nil, what, []string{user}), "")
	frame := websocket.AppendFrame(nil, websocket.OpText, text)
	online := what == "online"
	for _, c := range watching {
		c.t.Post(func() {
			if !c.gone && c.online != nil && c.online[user] != online {
				c.online[user] = online
				c.t.Send(frame)
			}
		})
	}
}

// deny closes a connection that showed a bad signature.
func (c *session) deny(reason string) {
	c.s.counts.denied.Add(1)
	c.close(protocol.CloseUnauthorized, reason)
}
