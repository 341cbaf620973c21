package mercure

import (
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestTopicsHaveChannelsOfTheirOwn(t *testing.T) {
	f := func(ns, topic, want string) {
		t.Helper()
		ch, long := channelOf(ns, topic)
		if ch != want || long != "" {
			t.Errorf("channel of %q is %q, want %q", topic, ch, want)
		}
		if err := hub.CheckChannel(ch); err != nil {
			t.Error(err)
		}
		if got := topicOf(ns, ch, nil); got != topic {
			t.Errorf("topic of %q is %q, want %q", ch, got, topic)
		}
	}
	f("mercure", "https://example.com/books/1", "mercure:https://example.com/books/1")
	f("mercure", "a b%20c\n", "mercure:a%20b%2520c%0A")
	f("mercure", "é\u0085", "mercure:é%C2%85")
	f("default", "https://e/1", "https%3A//e/1")
	f("default", "a", "a")
	long := strings.Repeat("é", hub.MaxChannelName)
	ch, tag := channelOf("mercure", long)
	if tag == "" || len(ch) > hub.MaxChannelName || hub.CheckChannel(ch) != nil {
		t.Errorf("channel of a long topic is %q, tag %q", ch, tag)
	}
	if got := topicOf("mercure", ch, map[string]string{tag: long}); got != long {
		t.Errorf("topic of %q is %q", ch, got)
	}
	if other, _ := channelOf("mercure", long+"x"); other == ch {
		t.Error("two topics share a channel")
	}
	if got := topicOf("mercure", "mercure:100%", nil); got != "100%" {
		t.Errorf("a name that is not an escape became %q", got)
	}
}

func FuzzTopic(f *testing.F) {
	for _, s := range []string{"a", "https://example.com/%41 é", "%~", "\xff%", "a:b", strings.Repeat("%", 400)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, topic string) {
		if topic == "" {
			return
		}
		for _, ns := range []string{"mercure", "default"} {
			ch, long := channelOf(ns, topic)
			if err := hub.CheckChannel(ch); err != nil {
				t.Fatalf("channel of %q is %q: %v", topic, ch, err)
			}
			if got := topicOf(ns, ch, map[string]string{long: topic}); got != topic {
				t.Fatalf("topic of %q is %q, want %q", ch, got, topic)
			}
			if hub.NamespaceOf(ch) != ns {
				t.Fatalf("%q is in %q", ch, hub.NamespaceOf(ch))
			}
		}
	})
}
