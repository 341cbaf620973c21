package tlsterm

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/push/hub"
)

const sharedSecret = Secret("0123456789abcdef0123456789abcdef-shared")

// visits connects and reports whether the session resumed; the echo brings the
// session ticket along.
func visits(t testing.TB, s *server, cache tls.ClientSessionCache, version uint16) bool {
	t.Helper()
	c := dial(t, s, func(c *tls.Config) { c.ClientSessionCache, c.MinVersion, c.MaxVersion = cache, version, version })
	roundTrip(t, c, []byte("hello"))
	roundTrip(t, c, text(20_000))
	_ = c.Close()
	return c.ConnectionState().DidResume
}

var bothVersions = []uint16{tls.VersionTLS12, tls.VersionTLS13}

func TestSessionsResumeOnEveryNodeWithTheSecret(t *testing.T) {
	one := serve(t, Config{TicketSecret: sharedSecret}, echoes)
	two := serve(t, Config{TicketSecret: sharedSecret}, echoes)
	unknown := serve(t, Config{TicketSecret: sharedSecret + "x"}, echoes)
	without := serve(t, Config{}, echoes)
	off := serve(t, Config{TicketSecret: sharedSecret, Tickets: setting.Off}, echoes)
	f := func(what string, from, to *server, want bool) {
		t.Helper()
		for _, v := range bothVersions {
			cache := tls.NewLRUClientSessionCache(1)
			if visits(t, from, cache, v) {
				t.Errorf("%s, %x: the first visit resumed", what, v)
			}
			for range 3 { // each resumption gives a new ticket
				if got := visits(t, to, cache, v); got != want {
					t.Errorf("%s, %x: resumed %v, want %v", what, v, got, want)
				}
				if !want {
					break
				}
			}
		}
	}
	f("the same node", one, one, true)
	f("another node", one, two, true)
	f("another secret", one, unknown, false)
	f("no secret", without, without, true)
	f("no common secret", without, one, false)
	f("tickets are off", off, off, false)
	if st := one.Stats(); st.Resumed == 0 || st.Full == 0 || st.Failed != 0 {
		t.Errorf("%+v", st)
	}
}

func TestTicketKeysRotate(t *testing.T) {
	s := serve(t, Config{TicketSecret: sharedSecret, TicketRotation: hub.Duration(time.Hour)}, echoes)
	at := func(periods int) { s.current.Load().rotate(&s.cfg, time.Now().Add(time.Duration(periods)*time.Hour)) }
	f := func(periods int, want bool) {
		t.Helper()
		for _, v := range bothVersions {
			cache := tls.NewLRUClientSessionCache(1)
			at(0)
			visits(t, s, cache, v)
			at(periods)
			if got := visits(t, s, cache, v); got != want {
				t.Errorf("%d periods later, %x: resumed %v, want %v", periods, v, got, want)
			}
		}
	}
	f(0, true)
	f(1, true)
	f(2, true)
	f(3, false)
	f(-1, true) // a clock that is behind
	f(-2, false)
}

func TestRunRotatesTicketKeys(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{TicketSecret: sharedSecret, TicketRotation: hub.Duration(time.Second)}, echoes)
	cache := tls.NewLRUClientSessionCache(1)
	visits(t, s, cache, tls.VersionTLS12)
	session, _ := cache.Get("localhost")
	eventually(t, "a ticket too old to resume", func() bool {
		cache.Put("localhost", session)
		return !visits(t, s, cache, tls.VersionTLS12)
	})
}

func TestTicketKeysAreAFunctionOfSecretScopeAndTime(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	base := ticketKeys([]byte(sharedSecret), "none ", time.Hour, now)
	if len(base) != 4 || base[0] == base[1] {
		t.Fatalf("%d keys", len(base))
	}
	shared := func(what string, keys [][32]byte, want int) {
		t.Helper()
		n := 0
		for _, k := range keys {
			if slices.Contains(base, k) {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d common keys, want %d", what, n, want)
		}
	}
	shared("the same", ticketKeys([]byte(sharedSecret), "none ", time.Hour, now), 4)
	shared("one period later", ticketKeys([]byte(sharedSecret), "none ", time.Hour, now.Add(time.Hour)), 3)
	shared("another secret", ticketKeys([]byte(strings.Repeat("x", 32)), "none ", time.Hour, now), 0)
	shared("another scope", ticketKeys([]byte(sharedSecret), "require ", time.Hour, now), 0)
	shared("another rotation", ticketKeys([]byte(sharedSecret), "none ", 2*time.Hour, now), 0)
	if d := untilNextPeriod(now.Add(time.Minute), time.Hour); d != 59*time.Minute {
		t.Errorf("%v until the next period", d)
	}
}
