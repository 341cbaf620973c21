package access

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// spaces are namespaces by name, as hub.Hub.Namespace finds them.
func spaces(list ...hub.Namespace) func(string) (*hub.Namespace, error) {
	return func(channel string) (*hub.Namespace, error) {
		for i := range list {
			if list[i].Name == hub.NamespaceOf(channel) {
				return &list[i], nil
			}
		}
		return nil, hub.ErrUnknownNamespace
	}
}

var all = Right{Client: true, Subscriber: true, Anonymous: true}

// generous is a node that allows everyone all that can be allowed, short of insecure.
func generous() *Model {
	rules := Rules{UserLimited: true, Subscribe: all, Publish: all, Presence: all, History: all}
	return New(spaces(hub.Namespace{Name: "default", Anonymous: true}, hub.Namespace{Name: "shop", Anonymous: true}), Config{
		Centrifuge: &CentrifugeConfig{Anonymous: true, Personal: "default", SharedUsers: true, Namespaces: map[string]Rules{"default": rules, "shop": rules}},
		Mercure:    &MercureConfig{Namespace: "shop", Anonymous: true},
		Pusher:     map[string]bool{"shop": true},
	})
}

func TestClassesOfChannels(t *testing.T) {
	m := generous()
	f := func(channel string, want Class) {
		t.Helper()
		if got := m.ClassOf(channel); got != want {
			t.Errorf("%s: %s, want %s", channel, got, want)
		}
		if m.Guarded(channel) != (want != Plain) {
			t.Errorf("%s: guarded is %v", channel, m.Guarded(channel))
		}
	}
	f("news", Plain)
	f("shop:cache-news", Plain)
	f("#42", Users)
	f("room#42,43", Users)
	f("$news#42", Users)
	f("$news", Token)
	f("shop:$news", Token)
	f("private-news", Plain) // no application is there
	f("shop:private-news", Signed)
	f("shop:presence-cache-news", Signed)
	f("shop:private-encrypted-news", Signed)
	f("shop:#server-to-user-42", SignedIn)
	f("#server-to-user-42", Users)
	f(recorded, Recording)
	f("shop:"+recorded+".x", Recording)
	f("rec.short", Plain)
	f("rec.a.bcdefghijklmnopqrstuvwxyz", Plain)
	m = New(spaces(hub.Namespace{Name: "default"}), Config{})
	f("#42", Plain)
	f("$news", Plain)
	f(recorded, Recording)
	m = New(spaces(), Config{Centrifuge: &CentrifugeConfig{Personal: "default"}})
	f("#42", Users)
	f("room#42", Plain)
	f("shop:#42", Plain)
}

// TestWhatIsOpenToEveryoneIsPlain has nothing that a namespace allows everyone open a
// guarded channel, by any protocol, for any operation.
func TestWhatIsOpenToEveryoneIsPlain(t *testing.T) {
	m := generous()
	rows := m.Table([]hub.Namespace{{Name: "default"}, {Name: "shop"}})
	if found := Findings(rows); len(found) > 0 {
		t.Errorf("%v", found)
	}
	opened := map[Protocol]bool{}
	for _, r := range rows {
		if r.Class == Plain && r.Op == Read && r.Verdicts["anonymous"] != Refused {
			opened[r.By] = true
		}
		if r.Class == Recording && r.Op == Publish && r.Text() != "" {
			t.Errorf("%s publish to recordings by %s", r.Text(), r.By)
		}
	}
	for _, by := range []Protocol{Native, Centrifuge, Mercure, Pusher} {
		if !opened[by] {
			t.Errorf("plain channels are not open by %s: the test shows nothing", by)
		}
	}
}

func TestInsecureIsFound(t *testing.T) {
	m := generous()
	m.rules.Load().cfg.Centrifuge.Insecure = true
	found := Findings(m.Table([]hub.Namespace{{Name: "default"}}))
	if len(found) == 0 || !strings.Contains(fmt.Sprint(found), `channels such as "#42" by centrifuge`) {
		t.Errorf("%v", found)
	}
	for _, f := range found {
		if f.By != Centrifuge || f.Op == Read {
			t.Errorf("%s", f)
		}
	}
}

func TestClassesLimitCallers(t *testing.T) {
	m := generous()
	client := func(subject string, patterns ...string) Caller {
		p, err := auth.CompilePatterns(patterns)
		if err != nil {
			t.Fatal(err)
		}
		id := auth.Client(subject, &p, &p)
		return Caller{Identity: &id}
	}
	key, err := auth.Granted("backend", []string{"**"}, []string{"**"}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	f := func(by Protocol, op Op, channel string, c Caller, want Verdict) {
		t.Helper()
		if got := m.Decide(by, op, channel, c); got != want {
			t.Errorf("%s %s %s: %s, want %s", by, op, channel, got, want)
		}
	}
	for _, by := range []Protocol{Native, Centrifuge} {
		f(by, Read, "news", client("42"), Public)
		f(by, Read, "news", client("42", "*"), Full)
		f(by, Read, "#42", client("42"), Full)
		f(by, Read, "#42", client("7"), Refused)
		f(by, Read, "#42", client(""), Refused)
		f(by, Read, "#42", client("7", "**"), Refused) // a wildcard was not meant for users' channels
		f(by, Read, "#42", client("7", "#*"), Full)
		f(by, Read, "#42", client("7", "#42"), Full)
		f(by, Read, "room#42,43", client("43"), Full)
		f(by, Read, "room#42,43", client("4"), Refused)
		f(by, Read, "room#42,43", client("7", "room*"), Refused)
		f(by, Read, "room#42,43", client("7", "room#*"), Full)
		f(by, Read, "$news", client("7"), Refused)
		f(by, Read, "$news", client("7", "**"), Full)
		f(by, Read, "shop:private-a", client("7"), Refused)
		f(by, Read, "shop:private-a", client("7", "shop:*"), Full)
		f(by, Read, "shop:#server-to-user-42", client("42"), Refused) // an application's users are others
		f(by, Read, recorded, client("7", "**"), Refused)
		f(by, Read, recorded, client("7", "rec.*"), Full)
		f(by, Publish, recorded, client("7", recorded), Refused)
		f(by, Publish, "#42", client("7", "**"), Refused)
		f(by, Publish, "#42", client("7", "#42"), Full)
		f(by, Read, "none:x", client("7", "**"), Refused)
	}
	f(Native, Read, "#42", Caller{Identity: key}, Full)
	f(CentrifugeAPI, Publish, "#42", Caller{Identity: key}, Full)
	f(CentrifugeAPI, Publish, recorded, Caller{Server: true}, Refused)
	f(Centrifuge, Publish, "#42", Caller{Identity: client("7").Identity, Joined: true}, Full)
	f(Mercure, Read, "shop:$a", Caller{Proof: true}, Full)
	f(Mercure, Read, "shop:#42", Caller{Proof: true}, Refused)
	f(Mercure, Read, "news", Caller{Proof: true}, Refused) // not its namespace
	f(Pusher, Read, "shop:private-a", Caller{Proof: true}, Full)
	f(Pusher, Read, "shop:private-a", Caller{}, Refused)
	f(Pusher, Read, "shop:"+recorded, Caller{}, Refused)
	f(Hold, Read, "#42", Caller{Proof: true}, Public)
	f(Hold, Read, "news", Caller{}, Refused)
	m.rules.Load().cfg.Centrifuge.SharedUsers = false
	f(Native, Read, "#42", client("42"), Refused) // user 42 of another issuer
	f(Centrifuge, Read, "#42", client("42"), Full)
	m.rules.Load().cfg.Centrifuge.Namespaces["default"] = Rules{}
	f(Centrifuge, Read, "#a,b", client("a"), Refused) // a personal channel has one user
	f(Centrifuge, Read, "#a,b", client("a,b"), Full)
}
