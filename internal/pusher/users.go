package pusher

import (
	"encoding/json"
	"sync"

	"github.com/weir-gateway/weir/internal/pusher/protocol"
)

// topicTerminate is where nodes are told to end a user's connections.
const topicTerminate = "pusher.terminate"

// termination is what is told there.
type termination struct {
	App  string `json:"app"`
	User string `json:"user"`
}

// users are the sessions of this node that have signed in. Any goroutine.
type users struct {
	mu     sync.Mutex
	byUser map[string]map[*session]struct{}
}

func (u *users) init() { u.byUser = map[string]map[*session]struct{}{} }

func (u *users) add(user string, s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byUser[user] == nil {
		u.byUser[user] = map[*session]struct{}{}
	}
	u.byUser[user][s] = struct{}{}
}

func (u *users) remove(user string, s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byUser[user], s)
	if len(u.byUser[user]) == 0 {
		delete(u.byUser, user)
	}
}

func (u *users) sessions(user string) []*session {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]*session, 0, len(u.byUser[user]))
	for s := range u.byUser[user] {
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
	return s.deps.Bus.Tell(topicTerminate, b)
}

func (s *Server) onTerminate(_ string, data []byte) {
	var t termination
	if json.Unmarshal(data, &t) != nil || s.byID[t.App] == nil {
		return
	}
	for _, c := range s.byID[t.App].users.sessions(t.User) {
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
		c.deny(protocol.CloseUnauthorized, "pusher:signin: its data has no auth and user_data")
		return
	}
	if !protocol.Equal(in.Auth, protocol.SignUser(c.app.Key, c.app.secret, c.id, in.UserData)) {
		c.deny(protocol.CloseUnauthorized, "pusher:signin: auth is not the app's signature of socket_id::user::user_data")
		return
	}
	user, err := protocol.ParseUser(in.UserData)
	switch {
	case err != nil:
		c.deny(protocol.CloseUnauthorized, "pusher:signin: "+err.Error())
		return
	case len(in.UserData) > c.s.cfg.MaxMemberData || protocol.CheckChannel(protocol.UserPrefix+user.ID) != nil:
		c.deny(protocol.CloseUnauthorized, "pusher:signin: user_data is too long")
		return
	}
	if c.user != nil {
		c.app.users.remove(c.user.ID, c)
	}
	c.user, c.authorized = &user, true
	c.app.users.add(user.ID, c)
	reply := append([]byte(`{"user_data":`), protocol.AppendString(nil, in.UserData)...)
	c.event(protocol.EventSigninSuccess, "", append(reply, '}'))
}

// deny closes a connection that showed a bad signature.
func (c *session) deny(code int, reason string) {
	c.s.counts.denied.Add(1)
	c.close(code, reason)
}
