package nats

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestConfigIsChecked(t *testing.T) {
	f := func(cfg Config, want string) {
		t.Helper()
		err := cfg.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	f(Config{Dir: "d"}, "")
	f(Config{URL: "nats://h:4222"}, "")
	f(Config{URL: "nats://h:4222, tls://i:4222"}, "")
	f(Config{}, "dir: it is empty")
	f(Config{URL: "nats://h:4222,"}, "not an address")
	f(Config{URL: "h"}, "not an address")
	f(Config{Dir: "d", Prefix: "a.b"}, "prefix")
	f(Config{Dir: "d", Prefix: strings.Repeat("p", 33)}, "prefix")
	f(Config{Dir: "d", MaxPending: -1}, "negative")
	f(Config{URL: "nats://h:1", TLS: TLS{Cert: "c"}}, "go together")
	f(Config{Dir: "d", Cluster: Cluster{Name: "c", Node: "n", Listen: "127.0.0.1:1"}}, "")
	f(Config{Dir: "d", Cluster: Cluster{Name: "c", Listen: "127.0.0.1:1"}}, "node")
	f(Config{Dir: "d", Cluster: Cluster{Name: "c", Node: "n", Listen: "here"}}, "host:port")
	f(Config{Dir: "d", Cluster: Cluster{Listen: "127.0.0.1:1"}}, "cluster.name")
	f(Config{URL: "nats://h:1", Cluster: Cluster{Name: "c", Node: "n", Listen: "127.0.0.1:1"}}, "cluster")
}

func TestReplicasNeedACluster(t *testing.T) {
	err := Config{Dir: "d"}.check([]hub.Namespace{{Name: "a", Replicas: 3}})
	if err == nil || !strings.Contains(err.Error(), "is not clustered") {
		t.Errorf("three replicas on one server: %v", err)
	}
	if err := (Config{Dir: "d"}).check([]hub.Namespace{{Name: "a"}, {Name: "a"}}); err == nil {
		t.Error("a namespace given twice is accepted")
	}
}

func TestTokensAreOneTokenAndDistinct(t *testing.T) {
	f := func(ns, channel, want string) {
		t.Helper()
		if got := token(ns, channel); got != want {
			t.Errorf("token(%q, %q) = %q, want %q", ns, channel, got, want)
		}
	}
	f("default", "news", "news")
	f("default", "default:news", "default=3Anews")
	f("a", "a:b.c", "b=2Ec")
	f("a", "a:a:b", "a=3Ab")
	f("a", "a:é*> =", "=C3=A9=2A=3E=20=3D")
}

func FuzzToken(f *testing.F) {
	f.Add("a:b", "a:c")
	f.Add("a:=", "a:=3D")
	f.Add("a:*", "a:>")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := string(appendToken(nil, a)), string(appendToken(nil, b))
		if (x == y) != (a == b) {
			t.Errorf("%q and %q have the tokens %q and %q", a, b, x, y)
		}
		if strings.Trim(x, plain+"-=") != "" {
			t.Errorf("%q has the token %q", a, x)
		}
	})
}

func FuzzQuote(f *testing.F) {
	f.Add("key")
	f.Add(`"`)
	f.Add(" a\r\nb\x00 ")
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, s string) {
		q := quote(s)
		if unquote(q) != s || strings.ContainsAny(q, "\r\n") || strings.TrimSpace(q) != q && s != "" && q[0] == '"' {
			t.Errorf("%q is quoted as %q and read as %q", s, q, unquote(q))
		}
	})
}

func FuzzParseAck(f *testing.F) {
	f.Add([]byte(`{"stream":"weir_a","seq":12}`))
	f.Add([]byte(`{"stream":"weir_a","seq":12,"duplicate":true}`))
	f.Add([]byte(`{"error":{"code":503,"err_code":10077,"description":"x"},"stream":"s","seq":0}`))
	f.Add([]byte(`{"stream":"error","domain":"d","seq":5}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if seq, _, err := parseAck(b); err == nil && seq == 0 {
			t.Errorf("%q is an acknowledgement without sequence", b)
		}
	})
}

func TestAcksAreRead(t *testing.T) {
	f := func(ack string, seq uint64, duplicate bool, want error) {
		t.Helper()
		s, d, err := parseAck([]byte(ack))
		if s != seq || d != duplicate || !errors.Is(err, want) {
			t.Errorf("%s: %d, %v, %v", ack, s, d, err)
		}
	}
	f(`{"stream":"weir_a","seq":12}`, 12, false, nil)
	f(`{"stream":"weir_a","domain":"d","seq":12}`, 12, false, nil)
	f(`{"stream":"weir_a","seq":12,"duplicate":true}`, 12, true, nil)
	f(`{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"a","seq":0}`, 0, false, hub.ErrStorageFull)
	f(`{"error":{"code":503,"err_code":10023,"description":"insufficient resources"},"stream":"a","seq":0}`, 0, false, hub.ErrStorageFull)
	f(`{"error":{"code":429,"err_code":10167,"description":"too many requests"},"stream":"a","seq":0}`, 0, false, hub.ErrOverloaded)
	f(`{"error":{"code":400,"err_code":10054,"description":"too large"},"stream":"a","seq":0}`, 0, false, hub.ErrTooLarge)
	f(`{"error":{"code":503,"err_code":10008,"description":"x"}}`, 0, false, hub.ErrUnavailable)
	f(`{"stream":"weir_a"}`, 0, false, hub.ErrUnavailable)
	f(`garbage`, 0, false, hub.ErrUnavailable)
}

func TestTailOfALongChannel(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 100_000}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	var answers []<-chan error
	const count = 6000
	for i := range count {
		c := make(chan error, 1)
		name := "a:x" // dense at first, then among many others
		if i > 1000 && i%7 != 0 {
			name = "a:other"
		}
		n.Publish(&ns, hub.Publication{Channel: name, Data: fmt.Append(nil, i)}, func(_ hub.Position, err error) { c <- err })
		answers = append(answers, c)
	}
	for _, c := range answers {
		if err := <-c; err != nil {
			t.Fatal(err)
		}
	}
	all := n.Page(&ns, "x", 0, count).Messages
	for _, tail := range []int{1, 2, 10, 128, 500, 1000, len(all) - 1, len(all), len(all) + 1} {
		snap := n.Sub(&ns, "x", tail)
		n.Unsubscribe(&ns, "a:x")
		want := all[max(0, len(all)-tail):]
		if len(snap.Messages) != len(want) || snap.Messages[0].Offset != want[0].Offset || (snap.Floor == 0) != (tail >= len(all)) {
			t.Errorf("tail %d of %d: %d messages from %d, floor %d", tail, len(all), len(snap.Messages), snap.Messages[0].Offset, snap.Floor)
		}
	}
}

// After a restart every channel is subscribed at once.
func TestTenThousandChannelsSubscribeInSeconds(t *testing.T) {
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	const count = 10_000
	began := time.Now()
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			if _, err := n.Subscribe(t.Context(), &ns, fmt.Sprint("a:", i), 128); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("%d channels in %v", count, took)
	if took > 15*time.Second {
		t.Errorf("subscribing %d channels took %v", count, took)
	}
	n.Pub(&ns, fmt.Sprint(count-1), "d")
	n.Await(&ns, fmt.Sprint(count-1), 1)
}

func BenchmarkPublish(b *testing.B) {
	f := func(name string, d hub.Durability, window int) {
		b.Run(name, func(b *testing.B) {
			br, err := New(Config{Dir: b.TempDir()}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer br.Close()
			ns := hub.Namespace{Name: "a", Durability: d}.WithDefaults()
			if err := br.Start(b.Context(), []hub.Namespace{ns}, func(*hub.Message) {}); err != nil {
				b.Fatal(err)
			}
			room := make(chan struct{}, window)
			p := hub.Publication{Channel: "a:x", Data: make([]byte, 128)}
			b.ReportAllocs()
			for b.Loop() {
				room <- struct{}{}
				br.Publish(&ns, p, func(_ hub.Position, err error) {
					if err != nil {
						b.Error(err)
					}
					<-room
				})
			}
			for range window {
				room <- struct{}{}
			}
		})
	}
	f("stored one at a time", hub.Stored, 1)
	f("stored 1000 under way", hub.Stored, 1000)
	f("none 1000 under way", hub.None, 1000)
}
