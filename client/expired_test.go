package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// expiring serves a stream to anyone who has a token that is good, and says at the end of
// one that it has expired otherwise.
func expiring(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Header.Get("Authorization") == "Bearer good" {
		_, _ = fmt.Fprint(w, "retry: 1000\nid: d1-1\n\nid: d1-2\ndata: {\"channel\":\"a\",\"id\":\"d1-2\",\"data\":1}\n\n")
		_, _ = fmt.Fprintf(w, "retry: 100\nevent: end\ndata: {\"code\":%d,\"reason\":\"token expired\"}\n\n", CodeTokenExpired)
		return
	}
	_, _ = fmt.Fprintf(w, "retry: 60000\nevent: end\ndata: {\"code\":%d,\"reason\":\"token expired\"}\n\n", CodeTokenExpired)
}

func TestStreamRequestsAnotherTokenWhenItsOwnHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := []string{"good", "old", "good"}
		n := 0
		c := roundTripper(http.HandlerFunc(expiring))
		c.cfg.TokenFunc = func(context.Context) (string, error) {
			n++
			return tokens[min(n, len(tokens))-1], nil
		}
		s, err := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		start := time.Now()
		next[*Message](t, s)
		next[*Message](t, s)
		// It does not wait as long as a client without another token is asked to.
		if took := time.Since(start); n != 3 || took > 3*time.Second {
			t.Errorf("%d tokens, after %v", n, took)
		}
	})
}

func TestStreamEndsWithATokenThatCannotBeRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := roundTripper(http.HandlerFunc(expiring))
		c.cfg.Token = "old"
		s, err := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for {
			ev, err := s.Next(t.Context())
			if err == nil {
				if st, ok := ev.(*State); !ok || !st.Connected {
					t.Fatalf("%+v", ev)
				}
				continue
			}
			if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeTokenExpired {
				t.Errorf("%v", err)
			}
			return
		}
	})
}
