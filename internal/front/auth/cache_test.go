package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

func TestCachedOnlyAfterVerify(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	token := hs(t, claims(nil))
	if _, ok := a.Cached(token); ok {
		t.Error("cached before it was verified")
	}
	id := verify(t, a)(token, nil)
	if again := verify(t, a)(token, nil); again != id {
		t.Error("the second Verify made a new identity")
	}
	if got, ok := a.Cached(token); !ok || got != id {
		t.Errorf("Cached = %v, %v", got, ok)
	}
	if s := a.Stats(); s.Verified != 1 || s.CacheHits != 2 {
		t.Errorf("stats %+v, want 1 verified and 2 hits", s)
	}
	forged := token[:len(token)-4] + "AAAA"
	verify(t, a)(forged, ErrBadToken)
	if _, ok := a.Cached(forged); ok {
		t.Error("a forged token is cached")
	}
	if _, ok := a.Cached(""); ok {
		t.Error("no token is cached")
	}
}

func TestCachedTokenStillExpires(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}})
	token := hs(t, claims(jwt.MapClaims{"exp": now.Add(time.Minute).Unix(), "nbf": now.Add(-time.Minute).Unix(), "iat": nil}))
	verify(t, a)(token, nil)
	f := func(d time.Duration, want error) {
		t.Helper()
		at := now.Add(d)
		if _, err := a.Verify(context.Background(), token, at); kindOf(err) != want {
			t.Errorf("Verify %v later: %v, want %v", d, err, want)
		}
		a.now = func() time.Time { return at }
		if _, ok := a.Cached(token); ok != (want == nil) {
			t.Errorf("Cached %v later: %v", d, ok)
		}
	}
	f(64*time.Second, nil)
	f(65*time.Second, ErrExpired)
	f(-61*time.Second, nil)
	f(-66*time.Second, ErrBadToken) // a clock set back: before nbf
}

func kindOf(err error) error {
	if e, ok := err.(*Error); ok {
		return e.kind
	}
	return err
}

func TestCacheIsBounded(t *testing.T) {
	c := newCache(10)
	k := new(key)
	sum := func(i int) [32]byte { return sha256.Sum256(fmt.Append(nil, i)) }
	for i := range 1000 {
		c.put(sum(i), &entry{id: Anonymous, key: k})
		c.put(sum(i), &entry{id: Anonymous, key: k}) // the same again takes no room
		if _, ok := c.get(sum(0), now); !ok {
			t.Fatalf("an entry in use was forgotten after %d others", i)
		}
	}
	n := 0
	for i := range 1000 {
		for _, g := range []*shelf{c.gens.Load().young, c.gens.Load().old} {
			if _, ok := g.load(sum(i)); ok {
				n++
			}
		}
	}
	if n > 10 || n < 5 {
		t.Errorf("%d entries, want 5 to 10", n)
	}
	if _, ok := c.get(sum(999), now); !ok {
		t.Error("the newest entry is not there")
	}
}

func TestCacheCanBeOff(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}, TokenCache: -1})
	token := hs(t, claims(nil))
	verify(t, a)(token, nil)
	if _, ok := a.Cached(token); ok {
		t.Error("cached")
	}
}

func TestCacheReadsDoNotWaitForWriters(t *testing.T) {
	a := newAuth(t, Config{KeySet: KeySet{HMACSecret: secret}, TokenCache: 2})
	one, two := hs(t, claims(nil)), hs(t, claims(jwt.MapClaims{"sub": "bob"}))
	verify(t, a)(one, nil)
	verify(t, a)(two, nil)         // one is in the old generation now
	a.rules.Load().cache.mu.Lock() // a writer that never ends
	defer a.rules.Load().cache.mu.Unlock()
	for _, token := range []string{one, two} {
		if _, ok := a.Cached(token); !ok {
			t.Error("not cached")
		}
	}
}
