// Package access decides who may read, publish to and see the presence and history of
// each channel, by every protocol.
//
//	m := access.New(hub.Namespace, cfg)           // cfg: what the protocols of this node allow
//	switch m.Decide(access.Native, access.Read, "news", access.Caller{Identity: id}) {
//	case access.Refused:                          // no
//	case access.Public:                           // yes, but no messages that are private
//	case access.Full:                             // yes, all of it
//	}
//
// A channel's name and the configuration give it a class. What a namespace allows
// everyone (anonymous, allow_subscribe_for_client, an application key) opens plain
// channels only, whichever protocol is used. The other classes are guarded: a caller
// needs to be meant, by name, by a grant, or by a proof of the class's own protocol.
//
// Every protocol and the front call Decide. Table and Findings, which the command
// line prints, call it too.
package access

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Protocol is the way by which a caller comes.
type Protocol uint8

// The protocols.
const (
	Native        Protocol = iota // /sse, /ws, /api/publish, /api/broadcast and embedding programs
	Hold                          // a stream that a backend has Weir hold (GRIP)
	Centrifuge                    // clients of the Centrifuge protocol
	CentrifugeAPI                 // its server API
	Mercure                       // a Mercure hub's subscribers and publishers
	Pusher                        // clients of the Pusher protocol
	PusherAPI                     // its REST API
	protocols
)

// An Op is what a caller wants to do with a channel.
type Op uint8

// The operations.
const (
	Read     Op = iota // subscribe, and read what resuming brings
	Publish            // publish
	Presence           // see who is subscribed
	History            // read messages without subscribing
	ops
)

// A Verdict is a decision.
type Verdict uint8

// The verdicts, each more than the one before.
const (
	Refused Verdict = iota
	Public          // allowed, but for messages that were published as private
	Full            // allowed
)

// A Class is what a channel's name means in its namespace.
type Class uint8

// The classes. All but Plain are guarded.
const (
	Plain Class = iota
	// Users are the channels of users: "name#42,43" in a namespace of the Centrifuge
	// protocol with allow_user_limited_channels, and "#42" where personal channels are.
	Users
	// Token are "$name" where the Centrifuge protocol is served.
	Token
	// Signed are an application's private-, presence- and private-encrypted- channels.
	Signed
	// SignedIn are an application's channels of signed-in users, "#server-to-user-42".
	SignedIn
	// Recording are the channels that recordings of replies are kept in.
	Recording
	classes
)

// Config is what the protocols of a node allow. A nil protocol is not served.
type Config struct {
	Centrifuge *CentrifugeConfig
	Mercure    *MercureConfig
	// Pusher are the namespaces of the applications.
	Pusher map[string]bool
}

// MercureConfig is the part of Mercure.
type MercureConfig struct {
	Namespace string
	// Anonymous lets clients without a token subscribe.
	Anonymous bool
}

// CentrifugeConfig is the part of the Centrifuge protocol.
type CentrifugeConfig struct {
	// Insecure allows every client what the namespace has.
	Insecure bool
	// Anonymous lets clients without a token connect.
	Anonymous bool
	// Personal is the namespace of the personal channels; empty means there are none.
	Personal string
	// SharedUsers reports that connection tokens are verified with Weir's own keys: a
	// token's subject is then the same user to all protocols.
	SharedUsers bool
	// Namespaces are options by the namespace's name.
	Namespaces map[string]Rules
}

// Rules are what a namespace allows clients of the Centrifuge protocol.
type Rules struct {
	// UserLimited makes "name#42,43" a channel of users.
	UserLimited                           bool
	Subscribe, Publish, Presence, History Right
}

// A Right is given to clients with a user, to those subscribed, and to those without a
// user too.
type Right struct{ Client, Subscriber, Anonymous bool }

// A Caller is who wants something. The zero value is a client without credentials.
type Caller struct {
	// Identity has the caller's subject and grants; nil means none.
	Identity *auth.Identity
	// Proof reports that something names this caller and this channel together: a
	// subscription token, an application's signature, a backend's permission, the claim
	// of a Mercure token, or that the user has signed in.
	Proof bool
	// Joined reports that the caller is subscribed to the channel.
	Joined bool
	// Server reports that the caller has the protocol's own key for all channels.
	Server bool
}

// A Model decides. All its methods may be called by any goroutine.
type Model struct{ rules atomic.Pointer[rules] }

// rules are what a Model decides by at a time. Immutable.
type rules struct {
	namespace func(channel string) (*hub.Namespace, error)
	cfg       Config
}

// New returns a Model of the namespaces that namespace finds, for example those of
// hub.Hub.Namespace.
func New(namespace func(channel string) (*hub.Namespace, error), cfg Config) *Model {
	m := &Model{}
	m.rules.Store(&rules{namespace: namespace, cfg: cfg})
	return m
}

// Replace makes m decide as other does.
func (m *Model) Replace(other *Model) { m.rules.Store(other.rules.Load()) }

// Decide returns what c may do with channel. A channel of an unknown namespace is
// refused.
func (m *Model) Decide(by Protocol, op Op, channel string, c Caller) Verdict {
	r := m.rules.Load()
	ns, err := r.namespace(channel)
	if err != nil {
		return Refused
	}
	q := question{m: r, by: by, ns: ns, channel: channel, Caller: c}
	q.class, q.literal = r.classify(ns.Name, channel)
	if q.Identity == nil {
		q.Identity = auth.Anonymous
	}
	q.Joined = q.Joined || by == Centrifuge && q.personal()
	switch op {
	case Read:
		return q.read()
	case Publish:
		return q.publish()
	default:
		return q.decideRead(op)
	}
}

// Meant reports whether channel names the caller, or a grant of the caller's covers it:
// nothing else needs to be asked.
func (m *Model) Meant(by Protocol, channel string, c Caller) bool {
	r := m.rules.Load()
	ns, err := r.namespace(channel)
	if err != nil || c.Identity == nil {
		return false
	}
	q := question{m: r, by: by, ns: ns, channel: channel, Caller: c}
	q.class, q.literal = r.classify(ns.Name, channel)
	return q.meant()
}

// Guarded reports whether only callers that are meant may read channel. Protocols
// publish there as private.
func (m *Model) Guarded(channel string) bool {
	class, _ := m.rules.Load().classify(hub.NamespaceOf(channel), channel)
	return class != Plain
}

// ClassOf returns the class of a channel.
func (m *Model) ClassOf(channel string) Class {
	class, _ := m.rules.Load().classify(hub.NamespaceOf(channel), channel)
	return class
}

// recordingKey is the length of a recording's key, recordingMark what precedes it.
const (
	recordingMark = "rec."
	recordingKey  = 24
)

// classify returns the class of a channel and how many bytes of its name a token's
// pattern has to spell out to cover it: a wildcard that was meant for the plain channels
// of a namespace does not reach the channels of users, or recordings.
func (m *rules) classify(ns, channel string) (class Class, literal int) {
	name := channel
	if i := strings.IndexByte(channel, ':'); i >= 0 {
		name = channel[i+1:]
	}
	before := len(channel) - len(name)
	if isRecording(name) {
		return Recording, before + len(recordingMark)
	}
	if m.cfg.Pusher[ns] {
		switch kind := protocol.KindOf(name); {
		case kind.Is(protocol.User):
			return SignedIn, before + len(protocol.UserPrefix)
		case kind.Is(protocol.Private):
			return Signed, 0
		}
	}
	c := m.cfg.Centrifuge
	if c == nil {
		return Plain, 0
	}
	if i := strings.IndexByte(name, '#'); i >= 0 && (c.Namespaces[ns].UserLimited || i == 0 && c.Personal == ns) {
		return Users, before + i + 1
	}
	if strings.HasPrefix(name, "$") {
		return Token, 0
	}
	return Plain, 0
}

// isRecording reports whether name is that of a recording, "rec.<key>" and what
// follows after a dot.
func isRecording(name string) bool {
	rest, ok := strings.CutPrefix(name, recordingMark)
	return ok && len(rest) >= recordingKey && (len(rest) == recordingKey || rest[recordingKey] == '.') &&
		strings.IndexByte(rest[:recordingKey], '.') < 0
}

// names reports whether a channel of users names user.
func (m *rules) names(ns, channel, user string) bool {
	_, list, ok := strings.Cut(channel, "#")
	if !ok || user == "" {
		return false
	}
	if list == user {
		return true
	}
	return m.cfg.Centrifuge.Namespaces[ns].UserLimited && slices.Contains(strings.Split(list, ","), user)
}

// A question is a call of Decide.
type question struct {
	Caller
	m       *rules
	by      Protocol
	ns      *hub.Namespace
	channel string
	class   Class
	literal int
}

func (q *question) read() Verdict {
	switch {
	case q.by == CentrifugeAPI || q.by == PusherAPI || !q.spelled():
		return Refused // no such call
	case q.by == Hold && q.Proof:
		return Public // private messages are for the client's own grants
	case q.Server, q.Proof && q.proves(), q.meant():
		return Full
	case q.class != Plain:
		return Refused
	}
	return q.open()
}

// proves reports whether proofs of the caller's protocol count for the class.
func (q *question) proves() bool {
	switch q.by {
	case Pusher, PusherAPI:
		return q.class == Signed || q.class == SignedIn
	case Mercure:
		return q.m.isMercures(q.ns) && q.class != Users && q.class != SignedIn && q.class != Recording
	case Centrifuge:
		return true
	default:
		return false
	}
}

// personal reports whether the channel is the caller's own, which the node subscribes
// it to.
func (q *question) personal() bool {
	c := q.m.cfg.Centrifuge
	return c != nil && q.class == Users && c.Personal == q.ns.Name && q.Identity.Subject != "" &&
		strings.HasSuffix(q.channel, "#"+q.Identity.Subject) && q.literal+len(q.Identity.Subject) == len(q.channel) &&
		(q.literal == 1 || q.channel[q.literal-2] == ':')
}

// spelled reports whether the protocol can name the channel: an application's names have
// neither "#" nor "$", but for its users.
func (q *question) spelled() bool {
	return q.by != Pusher && q.by != PusherAPI || q.class != Users && q.class != Token
}

// meant reports whether the caller is named by the channel, or has a grant for it.
func (q *question) meant() bool {
	switch q.by {
	case Mercure, Pusher, Hold:
		return false // their callers have no grants of Weir's
	}
	id := q.Identity
	if q.class == Users && id.By == auth.ByToken && (q.by == Centrifuge || q.m.cfg.Centrifuge.SharedUsers) && q.m.names(q.ns.Name, q.channel, id.Subject) {
		return true
	}
	return id.CanSubscribeFrom(q.channel, q.literalFor(id))
}

// literalFor is how much of the channel a pattern of id has to spell out. The keys of
// backends, and embedding programs, mean what they say.
func (q *question) literalFor(id *auth.Identity) int {
	if id.By != auth.ByToken {
		return 0
	}
	return q.literal
}

// open returns what the namespace allows every caller of the protocol to read.
func (q *question) open() Verdict {
	ok := false
	switch q.by {
	case Native:
		ok = q.ns.Anonymous
	case Centrifuge:
		c := q.m.cfg.Centrifuge
		if c == nil {
			return Refused
		}
		if c.Insecure {
			return Full
		}
		r := c.Namespaces[q.ns.Name].Subscribe
		ok = q.ns.Anonymous || r.Client && (q.Identity.Subject != "" || r.Anonymous)
	case Mercure:
		ok = q.m.isMercures(q.ns) && (q.m.cfg.Mercure.Anonymous || q.Identity.By != "")
	case Pusher:
		ok = q.m.cfg.Pusher[q.ns.Name]
	}
	if ok {
		return Public
	}
	return Refused
}

func (m *rules) isMercures(ns *hub.Namespace) bool {
	return m.cfg.Mercure != nil && m.cfg.Mercure.Namespace == ns.Name
}

func (q *question) publish() Verdict {
	if q.class == Recording {
		return Refused // recorders write there, and nothing else
	}
	ok := false
	switch q.by {
	case Native, CentrifugeAPI:
		ok = q.Server || q.Identity.CanPublishFrom(q.channel, q.literalFor(q.Identity))
	case Centrifuge:
		ok = q.Identity.CanPublishFrom(q.channel, q.literalFor(q.Identity)) || q.Proof || q.right(Publish) && (q.class == Plain || q.m.cfg.Centrifuge.Insecure || q.Joined || q.meant())
	case Mercure:
		ok = q.Proof && q.m.isMercures(q.ns)
	case Pusher:
		ok = q.Proof && q.class == Signed
	case PusherAPI:
		ok = q.Server && q.m.cfg.Pusher[q.ns.Name] && q.spelled()
	}
	if ok {
		return Full
	}
	return Refused
}

// decideRead decides on presence and history.
func (q *question) decideRead(op Op) Verdict {
	switch q.by {
	case Native, Hold:
		return Refused // they have no such call; resuming is a part of reading
	case CentrifugeAPI:
		if q.Server || q.meant() {
			return Full
		}
		return Refused
	case Mercure:
		if q.Proof && q.proves() {
			return Full
		}
		return Refused
	case Pusher, PusherAPI:
		return q.decideApplication(op)
	}
	if !q.right(op) {
		return Refused
	}
	switch {
	case q.m.cfg.Centrifuge.Insecure, q.meant():
		return Full
	case !q.Joined && q.class != Plain:
		return Refused
	case op == Presence, q.class != Plain: // those subscribed there were meant
		return Full
	}
	return Public
}

// decideApplication decides on presence and history for an application: members see each
// other, and its server sees all.
func (q *question) decideApplication(op Op) Verdict {
	member := q.by == Pusher && q.Proof && op == Presence && q.class == Signed
	if q.m.cfg.Pusher[q.ns.Name] && q.class != Recording && q.spelled() && (q.by == PusherAPI && q.Server || member) {
		return Full
	}
	return Refused
}

// right reports whether the namespace gives clients of the Centrifuge protocol a right.
func (q *question) right(op Op) bool {
	c := q.m.cfg.Centrifuge
	if c == nil {
		return false
	}
	rules := c.Namespaces[q.ns.Name]
	r := rules.Publish
	switch op {
	case Presence:
		r = rules.Presence
	case History:
		r = rules.History
	}
	known := q.Identity.Subject != "" || r.Anonymous
	return c.Insecure || known && (r.Client || r.Subscriber && q.Joined)
}
