package protocol

import (
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestKindOf(t *testing.T) {
	f := func(name string, want Kind) {
		t.Helper()
		if got := KindOf(name); got != want {
			t.Errorf("KindOf(%q) = %b, want %b", name, got, want)
		}
	}
	f("orders", 0)
	f("cache-orders", Cache)
	f("private-orders", Private)
	f("private-cache-orders", Private|Cache)
	f("private-encrypted-orders", Private|Encrypted)
	f("private-encrypted-cache-orders", Private|Encrypted|Cache)
	f("presence-orders", Private|Presence)
	f("presence-cache-orders", Private|Presence|Cache)
	f("#server-to-user-1", User)
	f("Private-orders", 0)
	f("private", 0)
	if !KindOf("private-a").Talks() || !KindOf("presence-a").Talks() || KindOf("a").Talks() || KindOf("private-encrypted-a").Talks() {
		t.Error("client events are for private and presence channels")
	}
}

func TestCheckChannel(t *testing.T) {
	f := func(name string, ok bool) {
		t.Helper()
		if err := CheckChannel(name); (err == nil) != ok {
			t.Errorf("CheckChannel(%q) = %v", name, err)
		}
	}
	f("orders", true)
	f("foo-bar_1234@=,.;", true)
	f("presence-a", true)
	f("#server-to-user-a b", true)
	f(strings.Repeat("a", 164), true)
	f(strings.Repeat("a", 165), false)
	f("", false)
	f("a b", false)
	f("a:b", false)
	f("ä", false)
	f("#a", false)
	f("#server-to-user-", false)
	f("a/b", false)
}

func TestCheckSocketID(t *testing.T) {
	f := func(id string, ok bool) {
		t.Helper()
		if err := CheckSocketID(id); (err == nil) != ok {
			t.Errorf("CheckSocketID(%q) = %v", id, err)
		}
	}
	f("1.2", true)
	f("1234567890.1234567890", true)
	f("1.", false)
	f(".1", false)
	f("1", false)
	f("1.2:private-x", false)
	f("1.2\n", false)
	f("", false)
}

func TestCheckEvent(t *testing.T) {
	f := func(name string, ok bool) {
		t.Helper()
		if err := CheckEvent(name); (err == nil) != ok {
			t.Errorf("CheckEvent(%q) = %v", name, err)
		}
	}
	f("App\\Events\\OrderShipped", true)
	f("client-a", true)
	f(strings.Repeat("a", 200), true)
	f(strings.Repeat("a", 201), false)
	f("", false)
	f("a\nb", false)
	f("pusher:error", false)
	f("pusher_internal:member_added", false)
}

func FuzzTopic(f *testing.F) {
	for _, s := range []string{"orders", "#server-to-user-a:b c%41ü\xff", "#server-to-user-%", "#server-to-user-%4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckChannel(name) != nil {
			return
		}
		topic := Topic(name)
		if back := ChannelOf(topic); back != name {
			t.Fatalf("%q became %q, %q", name, topic, back)
		}
		if len(topic) < 200 {
			if err := hub.CheckChannel("ns:" + topic); err != nil {
				t.Fatal(err)
			}
			if err := hub.CheckChannel(topic); err != nil {
				t.Fatal(err)
			}
		}
	})
}
