package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPublishSendsThePayloadByteForByte(t *testing.T) {
	f := func(data string) {
		t.Helper()
		for _, p := range []publication{
			{Channel: `x","data":0,"y`, Key: `"data":0`, Data: []byte(data)},
			{Channels: []string{"a", `"data":0`}, Data: []byte(data), IdempotencyKey: "k"},
		} {
			b, err := p.encode()
			if err != nil {
				t.Errorf("%s: %v", data, err)
				return
			}
			var back publication
			if err := json.Unmarshal(b, &back); err != nil {
				t.Errorf("%s: %v in %s", data, err, b)
			}
			if string(back.Data) != strings.TrimSpace(data) || back.Channel != p.Channel || back.Key != p.Key || len(back.Channels) != len(p.Channels) {
				t.Errorf("%s became %s", data, b)
			}
			if back.IdempotencyKey == "" || p.IdempotencyKey != "" && back.IdempotencyKey != p.IdempotencyKey {
				t.Errorf("idempotency key %q", back.IdempotencyKey)
			}
		}
	}
	f(`{"b": 1.0,  "a":"<&>"}`)
	f(`0`)
	f(`null`)
	f(` [ 1,2 ] `)
	f("{\n\t\"data\":0}")
	f(`"…\u2028"`)
}

func TestDataThatIsNoJSONIsNotSent(t *testing.T) {
	c, _ := New(Config{URL: "http://127.0.0.1:1"})
	defer c.Close()
	f := func(data string) {
		t.Helper()
		if _, err := c.Publish(t.Context(), Publication{Channel: "a", Data: []byte(data)}); err == nil || !strings.Contains(err.Error(), "not JSON") {
			t.Errorf("%q: %v", data, err)
		}
		if _, err := c.Broadcast(t.Context(), []string{"a"}, Publication{Data: []byte(data)}); err == nil || !strings.Contains(err.Error(), "not JSON") {
			t.Errorf("%q: %v", data, err)
		}
	}
	f("")
	f("hello")
	f(`{"a":1}}`)
	f(`1,"channel":"b"`)
}

func TestPublishTriesAgainWithOneKey(t *testing.T) {
	f := func(status, requests int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			keys := make(map[string]int)
			inner := newFake(1)
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var p publication
				_ = json.Unmarshal(body, &p)
				if keys[p.IdempotencyKey]++; keys[p.IdempotencyKey] <= 2 {
					w.Header().Set("Retry-After", "3")
					refuse(w, status, "not now", "later")
					return
				}
				r.Body = io.NopCloser(strings.NewReader(string(body)))
				inner.ServeHTTP(w, r)
			})
			c := roundTripper(handler)
			began := time.Now()
			at, err := c.Publish(t.Context(), Publication{Channel: "a", Data: []byte(`1`)})
			n := 0
			for _, k := range keys {
				n += k
			}
			if len(keys) != 1 || n != requests {
				t.Errorf("%d: %d requests with %d keys, want %d", status, n, len(keys), requests)
			}
			if requests == 1 {
				if e, ok := errors.AsType[*Error](err); !ok || e.Status != status || e.Message != "not now" || e.RetryAfter != 3*time.Second {
					t.Errorf("%d: %#v", status, err)
				}
				return
			}
			if err != nil || at != (Position{Epoch: "d1", Offset: 1}) || time.Since(began) < 6*time.Second {
				t.Errorf("%d: %v, %v after %v; asked to wait 3s twice", status, at, err, time.Since(began))
			}
		})
	}
	f(503, 3)
	f(429, 3)
	f(500, 3)
	f(502, 3)
	f(400, 1)
	f(401, 1)
	f(403, 1)
	f(404, 1)
	f(413, 1)
	f(507, 1)
}

// roundTripper is a client whose requests end at h, without a network.
func roundTripper(h http.Handler) *Client {
	c, err := New(Config{URL: "http://weir.test/at/a/path/", APIKey: "secret", Token: "jwt", HTTPClient: &http.Client{
		Transport: transport(func(r *http.Request) (*http.Response, error) {
			r.URL.Path = strings.TrimPrefix(r.URL.Path, "/at/a/path")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result(), nil
		}),
	}})
	if err != nil {
		panic(err)
	}
	return c
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestPublishGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := roundTripper(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n++
			refuse(w, 503, "busy", "")
		}))
		_, err := c.Publish(t.Context(), Publication{Channel: "a", Data: []byte(`1`)})
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 503 || n != defaultAttempts {
			t.Errorf("after %d attempts: %v", n, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Publish(ctx, Publication{Channel: "a", Data: []byte(`1`)})
		if _, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of the context: %v", err)
		}
	})
}

func TestBroadcastAnswersForEachChannel(t *testing.T) {
	f := newFake(1)
	c := roundTripper(f)
	got, err := c.Broadcast(t.Context(), []string{"a", "nowhere:b", "orders:1"}, Publication{Data: []byte(`1`)})
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	if got[0].Err != nil || got[0].Position.String() != "d1-1" || got[2].Err != nil || got[2].Position.String() != "o1-1" {
		t.Errorf("%+v", got)
	}
	if e, ok := errors.AsType[*Error](got[1].Err); !ok || e.Code != 404 || e.Message != "unknown namespace" {
		t.Errorf("%+v", got[1])
	}
	r := f.requested[0]
	if r.Header.Get("X-API-Key") != "secret" || r.Header.Get("Authorization") != "Bearer jwt" || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("header %v", r.Header)
	}
}

func TestAnswerOfAnotherServerIsAReadableError(t *testing.T) {
	f := func(status int, body, want string) {
		t.Helper()
		c := roundTripper(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		_, err := c.Publish(t.Context(), Publication{Channel: "a", Data: []byte(`1`)})
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	f(404, "<html>nginx</html>\n", `publish on "a": the server answered: 404 <html>nginx</html>`)
	f(403, "", `publish on "a": the server answered: 403 Forbidden`)
	f(400, `{"error":{"code":40001,"message":"bad channel","hint":"x"}}`, `publish on "a": the server answered: 400 bad channel`)
}

func TestConfigIsValidated(t *testing.T) {
	f := func(c Config, want string) {
		t.Helper()
		_, err := New(c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	f(Config{URL: "http://127.0.0.1:8000"}, "")
	f(Config{URL: "https://example.org/weir/"}, "")
	f(Config{}, "want http://")
	f(Config{URL: "ws://h"}, "want http://")
	f(Config{URL: "http://"}, "want http://")
	f(Config{URL: "http://h?x=1"}, "no query")
	f(Config{URL: "http://u:p@h"}, "credentials")
	f(Config{URL: "http://h", IdleTimeout: -1}, "under 0")
	f(Config{URL: "http://h", MaxBackoff: time.Millisecond}, "max_backoff")
	f(Config{URL: "http://h", Attempts: -1}, "attempts")
}

func TestSubscribeOptionsAreValidated(t *testing.T) {
	c, _ := New(Config{URL: "http://127.0.0.1:1"})
	defer c.Close()
	f := func(o SubscribeOptions, want string) {
		t.Helper()
		if s, err := c.Subscribe(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
			s.Close()
		}
	}
	f(SubscribeOptions{}, "no channel")
	f(SubscribeOptions{Channels: []string{"a", "b c"}}, "bad channel")
	f(SubscribeOptions{Channels: []string{"a"}, Since: "x"}, "bad position")
	f(SubscribeOptions{Channels: []string{"a"}, Transport: "tcp"}, "want sse or ws")
	f(SubscribeOptions{Channels: []string{"a", "b"}, Raw: true}, "one channel")
	f(SubscribeOptions{Channels: []string{"a"}, Raw: true, Transport: WebSocket}, "transport sse")
	f(SubscribeOptions{Channels: []string{"a"}, Buffer: -1}, "buffer")
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f := func(s string, want time.Duration) {
		t.Helper()
		if got := parseRetryAfter(s, now); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
	f("", 0)
	f("0", 0)
	f("120", 2*time.Minute)
	f("-1", 0)
	f("1.5", 0)
	f("soon", 0)
	f("Fri, 01 May 2026 12:00:30 GMT", 30*time.Second)
	f("Fri, 01 May 2026 11:00:00 GMT", 0)
}

func TestBackoffDoublesWithinItsBounds(t *testing.T) {
	for range 200 {
		b := backoff{min: time.Second, max: 20 * time.Second}
		f := func(requested time.Duration, has bool, lo, hi time.Duration) {
			t.Helper()
			if d := b.next(requested, has); d < lo || d > hi {
				t.Errorf("attempt %d: %v is not within %v..%v", b.failed, d, lo, hi)
			}
		}
		f(0, false, time.Second/2, time.Second)
		f(0, false, time.Second, 2*time.Second)
		f(0, false, 2*time.Second, 4*time.Second)
		f(time.Minute, true, time.Minute, 90*time.Second)
		f(0, true, 8*time.Second, 16*time.Second) // requested less than experience teaches
		f(0, false, 10*time.Second, 20*time.Second)
		f(0, false, 10*time.Second, 20*time.Second)
		f(time.Hour*999, true, maxRequested, maxRequested*3/2)
		b.failed = 0
		f(0, true, 0, 0) // retry: 0 after a stream that worked
		b.failed = 1000
		f(0, false, 10*time.Second, 20*time.Second)
	}
}
