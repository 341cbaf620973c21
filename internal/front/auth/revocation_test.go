package auth

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestRevokes(t *testing.T) {
	now := time.Now()
	v := NewRevocations()
	f := func(subject string, tok TokenID, at time.Time, want bool) {
		t.Helper()
		if got := v.Revokes(subject, tok, at); got != want {
			t.Errorf("Revokes(%q, %+v, %s) = %v, want %v", subject, tok, at.Sub(now), got, want)
		}
	}
	f("alice", TokenID{JTI: "j"}, now, false)
	v.Put(Revocation{Kind: RevokedSubject, Name: "alice", Until: now.Add(time.Hour)})
	v.Put(Revocation{Kind: RevokedSubject, Name: "bob", Until: now.Add(time.Hour), IssuedBefore: now})
	v.Put(Revocation{Kind: RevokedToken, Name: "j", Until: now.Add(time.Hour)})
	f("alice", TokenID{}, now, true)
	f("alice", TokenID{Issued: now.Add(time.Hour).UnixMilli()}, now, true)
	f("alice", TokenID{}, now.Add(time.Hour), false) // it has ended
	f("Alice", TokenID{}, now, false)
	f("j", TokenID{}, now, false) // a subject is not a jti
	f("", TokenID{JTI: "alice"}, now, false)
	f("", TokenID{}, now, false)
	f("bob", TokenID{Issued: now.Add(-time.Second).UnixMilli()}, now, true)
	f("bob", TokenID{Issued: now.UnixMilli()}, now, false)
	f("bob", TokenID{}, now, true) // no iat
	f("carol", TokenID{JTI: "j"}, now, true)
	f("carol", TokenID{JTI: "j"}, now.Add(time.Hour), false)
	if id := (&Identity{By: ByAPIKey, Subject: "alice"}); v.RevokesIdentity(id, now) {
		t.Error("an API key is revoked by its name")
	}
	if ended := v.Expire(now.Add(2 * time.Hour)); len(ended) != 3 || len(v.List()) != 0 {
		t.Errorf("ended %v, left %v", ended, v.List())
	}
	f("alice", TokenID{}, now, false)
}

func TestLookingUpRevocationsAllocatesNothing(t *testing.T) {
	now := time.Now()
	v := NewRevocations()
	for i := range 1000 {
		v.Put(Revocation{Kind: RevokedSubject, Name: fmt.Sprint("user-", i), Until: now.Add(time.Hour)})
		v.Put(Revocation{Kind: RevokedToken, Name: fmt.Sprint("token-", i), Until: now.Add(time.Hour)})
	}
	id := &Identity{By: ByToken, Subject: "someone", token: TokenID{JTI: "0b9c1a52"}}
	if n := testing.AllocsPerRun(100, func() { v.RevokesIdentity(id, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// One more than the bound is refused, and what other nodes add at the same time is dropped at twice
// the bound and counted.
func TestRevocationsAreBounded(t *testing.T) {
	now := time.Now()
	v := NewRevocations()
	until := now.Add(time.Hour)
	for i := range maxRevoked {
		r := Revocation{Kind: RevokedToken, Name: fmt.Sprint(i), Until: until}
		err := v.Check(&r, now)
		if refused := i >= MaxRevocations; (err != nil) != refused {
			t.Fatalf("revocation %d: %v", i, err)
		}
		v.Put(r)
	}
	if v.Put(Revocation{Kind: RevokedToken, Name: "more", Until: until}) || v.Stats().Overflow != 1 {
		t.Errorf("counted %+v", v.Stats())
	}
	if !v.Put(Revocation{Kind: RevokedToken, Name: "7", Until: until.Add(time.Hour)}) {
		t.Error("one that is there is not replaced")
	}
	if r := (Revocation{Kind: RevokedToken, Name: "7", Until: until}); v.Check(&r, now) != nil {
		t.Error("one that is there cannot be extended")
	}
}

func TestRevocationsFromManyGoroutines(t *testing.T) {
	now := time.Now()
	v := NewRevocations()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				name := fmt.Sprint(j)
				if i%2 == 0 {
					v.Put(Revocation{Kind: RevokedSubject, Name: name, Until: now.Add(time.Hour)})
				} else {
					v.Remove(RevokedSubject, name)
				}
				v.Revokes(name, TokenID{JTI: name}, now)
			}
		})
	}
	wg.Wait()
	if n := len(v.List()); int64(n) != v.count() || n != v.Stats().Subjects {
		t.Errorf("%d are there, %d are counted", n, v.count())
	}
}

func BenchmarkRevokes(b *testing.B) {
	now := time.Now()
	id := &Identity{By: ByToken, Subject: "someone", token: TokenID{JTI: "0b9c1a52"}}
	for _, n := range []int{0, 1000, MaxRevocations} {
		v := NewRevocations()
		for i := range n {
			v.Put(Revocation{Kind: RevokedSubject, Name: fmt.Sprint("user-", i), Until: now.Add(time.Hour)})
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				v.RevokesIdentity(id, now)
			}
		})
	}
}
