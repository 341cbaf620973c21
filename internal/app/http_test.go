package app

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/websocket"
)

func TestRefusals(t *testing.T) {
	g := start(t, nil)
	f := func(raw string, status int) {
		t.Helper()
		w := g.dial(t)
		w.Send(wiretest.CRLF(raw))
		res, body := w.Answer(strings.Fields(raw)[0])
		wantError(t, fmt.Sprintf("%.70q", raw), res, body, status)
	}
	f("GET / HTTP/1.1\nHost: a\n\n", 404)
	f("GET /metrics HTTP/1.1\nHost: a\n\n", 404)
	f("GET /echo HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"\n", 404)
	f("OPTIONS /nowhere HTTP/1.1\nHost: a\nAccess-Control-Request-Method: GET\n\n", 404)
	f("POST /sse HTTP/1.1\nHost: a\nContent-Length: 0\n\n", 405)
	f("GET /api/publish HTTP/1.1\nHost: a\n\n", 405)
	f("DELETE /healthz HTTP/1.1\nHost: a\n\n", 405)
	f("OPTIONS /sse HTTP/1.1\nHost: a\n\n", 405)
	f("GET /sse HTTP/1.1\nHost: a\n\n", 400)
	f("GET /sse?channel= HTTP/1.1\nHost: a\n\n", 400)
	f("GET /sse?channel=%zz HTTP/1.1\nHost: a\n\n", 400)
	f("GET /sse?channel=a%20b HTTP/1.1\nHost: a\n\n", 400)
	f("GET /sse?channel=a%00b HTTP/1.1\nHost: a\n\n", 400)
	f("GET /sse?"+strings.Repeat("channel=a&", 3)+manyChannels(33)+" HTTP/1.1\nHost: a\n\n", 400)
	f("GET /sse?channel=nope:a HTTP/1.1\nHost: a\n\n", 404)
	f("GET /sse?channel=private:a HTTP/1.1\nHost: a\n\n", 401)
	f("GET /sse?channel=a&channel=private:a HTTP/1.1\nHost: a\n\n", 401)
	f("GET /sse?channel=private:a HTTP/1.1\nHost: a\nAuthorization: Bearer x\n\n", 401)
	f("GET /sse?channel=private:a HTTP/1.1\nHost: a\nAuthorization: Bearer x\nAuthorization: Bearer x\n\n", 400)
	f("GET /sse?channel=private:a HTTP/1.1\nHost: a\nCookie: a=b\nCookie: a=b\n\n", 400)
	f("GET /sse?channel=private:a HTTP/1.1\nHost: a\nX-API-Key: "+testKey+"\n\n", 403)
	f("GET /sse?channel=a HTTP/1.1\nHost: a\nOrigin: http://evil.example\n\n", 403)
	f("GET /ws?channel=a HTTP/1.1\nHost: a\nOrigin: http://evil.example\n"+wiretest.UpgradeFields+"\n", 403)
	f("GET /ws?channel=a HTTP/1.1\nHost: a\n\n", 426)
	f("GET /ws?channel=a HTTP/1.0\nHost: a\n"+wiretest.UpgradeFields+"\n", 426)
	f("GET /ws?channel=a HTTP/1.1\nHost: a\n"+strings.Replace(wiretest.UpgradeFields, "13", "8", 1)+"\n", 426)
	f("GET /ws?channel=a HTTP/1.1\nHost: a\n"+strings.Replace(wiretest.UpgradeFields, "dGhl", "", 1)+"\n", 400)
	f("GET /ws?channel=a HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n", 400)
	f("GET /ws?channel=a HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"Content-Length: 2\n\nhi", 400)
	f("GET /ws HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"\n", 400)
	f("GET /ws?channel=private:a HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"\n", 401)
	f("POST /api/publish HTTP/1.1\nHost: a\nContent-Length: 2\n\n{}", 401)
	f("POST /api/publish HTTP/1.1\nHost: a\nX-API-Key: wrong\nContent-Length: 2\n\n{}", 401)
	f("POST /api/publish HTTP/1.1\nHost: a\nX-API-Key: wrong\nContent-Length: 9999\n\n{}", 401)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+keyField+"Content-Length: 2\n\n{}", 400)
	f("POST /api/publish HTTP/1.1\nHost: a\nOrigin: http://evil.example\n"+keyField+"Content-Length: 2\n\n{}", 403)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Content-Length: 2\n\n{}", 400)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Content-Length: 0\n\n", 400)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"\n", 411)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Content-Length: 99999999\n\n", 413)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Expect: 100-continue\nContent-Length: 99999999\n\n", 413)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Transfer-Encoding: chunked\n\nzz\n", 400)
	f("POST /api/publish HTTP/1.1\nHost: a\nContent-Length: 2\nTransfer-Encoding: chunked\n\n{}", 400)
	f("GET /"+strings.Repeat("a", 9000)+" HTTP/1.1\nHost: a\n\n", 414)
	f("GET / HTTP/1.1\nHost: a\nX: "+strings.Repeat("a", 40_000)+"\n\n", 431)
	f("GET / HTTP/1.1\nHost: a\n"+strings.Repeat("X: a\n", 101)+"\n", 431)
	f("GET / HTTP/2.0\nHost: a\n\n", 505)
	f("GET / HTTP/1.1\n\n", 400)
	f("GET / HTTP/1.1\nHost: a\nExpect: tea\n\n", 417)
}

func manyChannels(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "channel=c%d&", i)
	}
	return b.String()
}

func TestCallsThatAreRefused(t *testing.T) {
	g := start(t, func(c *config.Config) {
		c.Auth.APIKeys = append(c.Auth.APIKeys, auth.APIKey{Name: "news only", Key: "news-0123456789abcdef", Publish: []string{"news.*"}})
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "small", MaxMessageBytes: 10, QueueBytes: 1 << 10})
	})
	f := func(path, body, says string, status int) {
		t.Helper()
		w := g.dial(t)
		w.Send(wiretest.CRLF(fmt.Sprintf("POST %s HTTP/1.1\nHost: a\n%sContent-Length: %d\n\n", path, keyField, len(body))) + body)
		res, got := w.Answer("POST")
		wantError(t, body, res, got, status)
		if !strings.Contains(got, says) {
			t.Errorf("%s: %s does not say %q", body, got, says)
		}
	}
	f("/api/publish", `{"channel":"a"}`, `\"data\" is missing`, 400)
	f("/api/publish", `{"data":1}`, `\"channel\" is missing`, 400)
	f("/api/publish", `{"channel":"a","data":1}x`, `follows`, 400)
	f("/api/publish", `{"channel":"a","data":01}`, `byte 23`, 400)
	f("/api/publish", `{"channel":"a","data":1,"date":2}`, `unknown field`, 400)
	f("/api/publish", `{"channels":["a"],"data":1}`, `/api/broadcast`, 400)
	f("/api/publish", `{"channel":"nope:a","data":1}`, `unknown namespace`, 404)
	f("/api/publish", `{"channel":"a b","data":1}`, `bad channel`, 400)
	f("/api/publish", `{"channel":"a","data":1,"idempotency_key":"a\n"}`, `control`, 400)
	f("/api/publish", `{"channel":"a","data":1,"idempotency_key":"`+strings.Repeat("k", 129)+`"}`, `128`, 400)
	f("/api/publish", `{"channel":"small:a","data":"0123456789"}`, `too large`, 413)
	f("/api/publish", "{\"channel\":\"a\",\"data\":\"\xff\"}", `UTF-8`, 400)
	f("/api/broadcast", `{"channel":"a","data":1}`, `/api/publish`, 400)
	f("/api/broadcast", `{"channels":[],"data":1}`, `empty`, 400)
	f("/api/broadcast", `{"channels":["a"`+strings.Repeat(`,"a"`, 1000)+`],"data":1}`, `1000`, 400)

	w := g.dial(t)
	w.Send(postHead("X-API-Key: news-0123456789abcdef\n", 24) + `{"channel":"a","data":1}`)
	res, body := w.Answer("POST")
	wantError(t, "a channel that the key does not cover", res, body, 403)
	w.Send(postHead("X-API-Key: news-0123456789abcdef\n", 29) + `{"channel":"news.a","data":1}`)
	if res, body := w.Answer("POST"); res.StatusCode != 200 || !hasResult(body) {
		t.Errorf("a channel that the key covers: %d %s", res.StatusCode, body)
	}
}

func TestBroadcastAnswersPerChannel(t *testing.T) {
	g := start(t, nil)
	status, body := g.post(t, "/api/broadcast", `{"channels":["a","nope:b","orders:c"],"data":1}`)
	if status != 200 || bytes.Count(body, []byte(`"offset":1`)) != 2 || bytes.Count(body, []byte(`"code":404`)) != 1 {
		t.Errorf("%d %s", status, body)
	}
	// The key of one broadcast is not the key of another with another cut.
	for _, call := range []string{
		`{"channels":["x/y"],"data":1,"idempotency_key":"k"}`, `{"channels":["y"],"data":2,"idempotency_key":"k/x"}`, `{"channels":["x/y"],"data":1,"idempotency_key":"k"}`,
	} {
		_, body = g.post(t, "/api/broadcast", call)
	}
	if !bytes.Contains(body, []byte(`"offset":2`)) {
		t.Errorf("the third is the first again, at offset 2: %s", body)
	}
	if pos := g.publish(t, "a", "1"); pos.Offset != 4 {
		t.Errorf("next offset %d, want 4: three were stored before", pos.Offset)
	}
}

func TestErrorsAndAnswersCanBeReadByAllowedPages(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Auth.AllowedOrigins = []string{"https://app.example", "*"} })
	f := func(raw, origin, credentials string, status int) {
		t.Helper()
		w := g.dial(t)
		w.Send(strings.Replace(wiretest.CRLF(raw), "\r\n", "\r\nOrigin: "+origin+"\r\n", 1))
		res := w.Response()
		if res.StatusCode != status || res.Header.Get("Access-Control-Allow-Origin") != origin ||
			res.Header.Get("Access-Control-Allow-Credentials") != credentials || !strings.Contains(res.Header.Get("Vary"), "Origin") {
			t.Errorf("%.50q from %s: %d %v, want %d and credentials %q", raw, origin, res.StatusCode, res.Header, status, credentials)
		}
	}
	const app, other = "https://app.example", "https://other.example"
	f("GET /sse?channel=a HTTP/1.1\nHost: a\n\n", app, "true", 200)
	f("GET /sse?channel=a HTTP/1.1\nHost: a\n\n", other, "", 200)
	f("GET /sse HTTP/1.1\nHost: a\n\n", app, "true", 400)
	f("GET /nowhere HTTP/1.1\nHost: a\n\n", app, "true", 404)
	f("PUT /sse HTTP/1.1\nHost: a\n\n", app, "true", 405)
	f("GET /sse?channel=private:a HTTP/1.1\nHost: a\n\n", app, "true", 401)
	f("GET /sse?channel=private:a&token=x HTTP/1.1\nHost: a\n\n", other, "", 401)
	f("POST /api/publish HTTP/1.1\nHost: a\nContent-Length: 99999999\n\n", app, "true", 413)
	f("POST /api/publish HTTP/1.1\nHost: a\n\n", app, "true", 411)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Transfer-Encoding: chunked\n\nzz\n", app, "true", 400)
	f("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Content-Length: 2\n\n{}", app, "true", 400)
	f("GET /ws?channel=a HTTP/1.1\nHost: a\n\n", app, "true", 426)
	f("OPTIONS /sse HTTP/1.1\nHost: a\nAccess-Control-Request-Method: GET\nAccess-Control-Request-Headers: last-event-id\n\n", app, "true", 204)
	f("OPTIONS /api/publish HTTP/1.1\nHost: a\nAccess-Control-Request-Method: POST\n\n", other, "", 204)
}

func TestPreflightNamesWhatClientsSend(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Auth.AllowedOrigins = []string{"https://app.example"} })
	w := g.dial(t)
	w.Send(wiretest.CRLF("OPTIONS /sse HTTP/1.1\nHost: a\nOrigin: https://app.example\nAccess-Control-Request-Method: GET\n\n"))
	res, _ := w.Answer("OPTIONS")
	for _, name := range []string{"last-event-id", "authorization", "cache-control", "content-type", "x-api-key"} {
		if !strings.Contains(res.Header.Get("Access-Control-Allow-Headers"), name) {
			t.Errorf("%s is not allowed: %v", name, res.Header)
		}
	}
	w = g.dial(t)
	w.Send(wiretest.CRLF("OPTIONS /sse HTTP/1.1\nHost: a\nOrigin: https://evil.example\nAccess-Control-Request-Method: GET\n\n"))
	res, body := w.Answer("OPTIONS")
	wantError(t, "another origin", res, body, 403)
	if res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("another origin may read")
	}
}

func TestStaticFilesAndHealth(t *testing.T) {
	file := downstream.Static{ContentType: "text/html", Body: bytes.Repeat([]byte("x"), 300_000)}
	g := startWith(t, nil, map[string]downstream.Static{"/": file})
	f := func(raw string, length int) {
		t.Helper()
		w := g.dial(t)
		w.Send(wiretest.CRLF(raw))
		if method := strings.Fields(raw)[0]; method == "HEAD" {
			res, body := w.Answer(method)
			if res.StatusCode != 200 || res.ContentLength != int64(length) || len(body) != 0 || w.R.Buffered() > 0 {
				t.Errorf("%q: %d with %d bytes: %v", raw, res.StatusCode, len(body), res.Header)
			}
			return
		}
		if res, body := w.Answer("GET"); res.StatusCode != 200 || len(body) != length {
			t.Errorf("%q: %d with %d bytes", raw, res.StatusCode, len(body))
		}
	}
	f("GET / HTTP/1.1\nHost: a\n\n", 300_000)
	f("HEAD / HTTP/1.1\nHost: a\n\n", 300_000)
	f("GET / HTTP/1.0\n\n", 300_000)
	f("GET /healthz HTTP/1.1\nHost: a\n\n", 3)
	f("HEAD /healthz HTTP/1.1\nHost: a\n\n", 3)
	f("GET /readyz HTTP/1.1\nHost: a\n\n", 6)

	// A client that ends its sending side still gets all of a long answer.
	w := g.dial(t)
	_ = w.Conn.(*net.TCPConn).SetReadBuffer(128 << 10)
	w.Send(wiretest.CRLF("GET / HTTP/1.1\nHost: a\n\n"))
	_ = w.Conn.(*net.TCPConn).CloseWrite()
	hurry(w)
	if _, body := w.Answer("GET"); len(body) != 300_000 || !w.Closed() {
		t.Errorf("after half-close: %d bytes", len(body))
	}
}

func TestHTTP10KeepsAliveOnlyOnRequest(t *testing.T) {
	g := start(t, nil)
	w := g.dial(t)
	w.Send(wiretest.CRLF("GET /healthz HTTP/1.0\nConnection: keep-alive\n\n"))
	if res, _ := w.Answer("GET"); res.Header.Get("Connection") != "keep-alive" {
		t.Errorf("head %v, want keep-alive", res.Header)
	}
	w.Send(wiretest.CRLF("GET /healthz HTTP/1.0\n\n"))
	if res, _ := w.Answer("GET"); !res.Close || !w.Closed() {
		t.Error("the connection stays open")
	}
	w = g.dial(t)
	w.Send(wiretest.CRLF("GET /sse?channel=a HTTP/1.0\n\n"))
	if res := w.Response(); res.StatusCode != 200 {
		t.Errorf("SSE over HTTP/1.0: %d", res.StatusCode)
	}
	w.Block()
}

func TestBodiesInPieces(t *testing.T) {
	g := start(t, nil)
	chunks := "5\r\n{\"cha\r\n1c;x=y\r\nnnel\":\"news\",\"data\":{\"n\":1}}\r\n0\r\nX: y\r\n\r\n"
	chunkedHead := wiretest.CRLF("POST /api/publish HTTP/1.1\nHost: a\n" + keyField + "Transfer-Encoding: chunked\n\n")
	for _, whole := range []string{postHead(keyField, len(publishBody)) + publishBody, chunkedHead + chunks} {
		w := g.dial(t)
		// Every byte alone, and a second request right behind.
		for i := range whole {
			w.Send(whole[i : i+1])
		}
		if res, body := w.Answer("POST"); res.StatusCode != 200 || !hasResult(body) {
			t.Errorf("byte by byte: %d %s", res.StatusCode, body)
		}
		for cut := 1; cut < len(whole); cut += 7 {
			w.Send(whole[:cut])
			w.Send(whole[cut:] + whole)
			for range 2 {
				if res, body := w.Answer("POST"); res.StatusCode != 200 || !hasResult(body) {
					t.Fatalf("cut at %d: %d %s", cut, res.StatusCode, body)
				}
			}
		}
	}
}

// The head of a request whose body comes later must not be read from the buffer
// that has held another request since.
func TestABodyInPiecesHasItsOwnCredentials(t *testing.T) {
	g := start(t, func(c *config.Config) { c.EventLoop.Loops = 1 })
	key := g.dial(t)
	post := func(field string) {
		t.Helper()
		mine, theirs := field, keyField
		want := 401
		if field == keyField {
			theirs, want = "X-API-Key: "+strings.Repeat("x", len(testKey))+"\n", 200
		}
		w := g.dial(t)
		w.Send(postHead(mine, len(publishBody)) + publishBody[:3])
		for range 3 {
			key.Send(postHead(theirs, len(publishBody)) + publishBody)
			key.Answer("POST")
		}
		w.Send(publishBody[3:])
		if res, body := w.Answer("POST"); res.StatusCode != want {
			t.Errorf("%q: %d %s, want %d", field, res.StatusCode, body, want)
		}
	}
	post("X-API-Key: " + strings.Repeat("x", len(testKey)) + "\n")
	post(keyField)
}

func TestExpectContinueIsAnsweredForAuthorizedPublishers(t *testing.T) {
	g := start(t, nil)
	head := func(fields string) string { return postHead("Expect: 100-continue\n"+fields, len(publishBody)) }
	w := g.dial(t)
	w.Send(head(keyField))
	if res := w.Response(); res.StatusCode != 100 {
		t.Fatalf("%d, want 100", res.StatusCode)
	}
	w.Send(publishBody)
	if res, _ := w.Answer("POST"); res.StatusCode != 200 {
		t.Errorf("%d, want 200", res.StatusCode)
	}
	w.Send(head(keyField) + publishBody) // it did not wait
	if res, _ := w.Answer("POST"); res.StatusCode != 200 {
		t.Errorf("with the body at once: %d, want 200", res.StatusCode)
	}
	w.Send(head(""))
	if res, _ := w.Answer("POST"); res.StatusCode != 401 || !w.Closed() {
		t.Errorf("without a key: %d, want 401 and the end", res.StatusCode)
	}
}

func TestABodyIsRefusedInTheMiddleWhenItGrowsTooLarge(t *testing.T) {
	g := start(t, nil)
	w := g.dial(t)
	w.Send(wiretest.CRLF("POST /api/publish HTTP/1.1\nHost: a\n" + keyField + "Transfer-Encoding: chunked\n\n"))
	chunk := "10000\r\n" + strings.Repeat(" ", 0x10000) + "\r\n"
	for range 17 {
		w.Send(chunk)
	}
	_, _ = w.Write([]byte("1\r\nx\r\n")) // the byte too many; the answer may be there before
	res, body := w.Answer("POST")
	wantError(t, "a body over the limit", res, body, 413)
	if !res.Close || !w.Closed() {
		t.Error("the connection stays open in the middle of a body")
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	g := start(t, withSecret)
	token := mint(t, auth.MintClaims{Publish: []string{"**"}})
	var all strings.Builder
	statuses := []int{}
	add := func(raw string, status int) {
		all.WriteString(raw)
		statuses = append(statuses, status)
	}
	for range 3 {
		// A token that is not known yet is verified elsewhere: the rest waits.
		add(postHead("Authorization: Bearer "+mint(t, auth.MintClaims{Subject: "x"})+"\n", len(publishBody))+publishBody, 403)
		add(wiretest.CRLF("GET /healthz HTTP/1.1\nHost: a\n\n"), 200)
		add(postHead("Authorization: Bearer "+token+"\n", len(publishBody))+publishBody, 200)
		add(postHead("", len(publishBody))+publishBody, 401)
		add(wiretest.CRLF("GET /nowhere HTTP/1.1\nHost: a\n\n"), 404)
	}
	add(wiretest.CRLF("GET /sse?channel=news&token="+token+" HTTP/1.1\nHost: a\n\n"), 200)
	w := g.dial(t)
	w.Send(all.String())
	for i, want := range statuses[:len(statuses)-1] {
		if res, body := w.Answer("GET"); res.StatusCode != want {
			t.Fatalf("answer %d: %d %s, want %d", i, res.StatusCode, body, want)
		}
	}
	if res := w.Response(); res.StatusCode != 200 || !strings.HasPrefix(w.Block(), "retry:") {
		t.Errorf("the stream at the end: %d", res.StatusCode)
	}
}

func TestHalfClosedPipelineIsAnsweredWhole(t *testing.T) {
	g := start(t, withSecret)
	w := g.dial(t)
	for range 4 {
		w.Send(postHead("Authorization: Bearer "+mint(t, auth.MintClaims{Publish: []string{"news"}})+"\n", len(publishBody)) + publishBody)
	}
	_ = w.Conn.(*net.TCPConn).CloseWrite()
	for i := range 4 {
		if res, body := w.Answer("POST"); res.StatusCode != 200 {
			t.Fatalf("answer %d: %d %s", i, res.StatusCode, body)
		}
	}
	if !w.Closed() {
		t.Error("the connection stays open")
	}
}

func TestSlowRequestsAreCut(t *testing.T) {
	t.Parallel() // it mostly waits
	g := start(t, func(c *config.Config) {
		c.Downstream.HeadTimeout = hub.Duration(300 * time.Millisecond)
		c.Downstream.BodyTimeout = hub.Duration(300 * time.Millisecond)
		c.Downstream.KeepAlive = hub.Duration(300 * time.Millisecond)
	})
	drip := func(first, piece string, every time.Duration) (*http.Response, string) {
		t.Helper()
		w := g.dial(t)
		w.Send(first)
		done := make(chan struct{})
		defer func() { <-done }()
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			defer close(done)
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					if _, err := w.Write([]byte(piece)); err != nil {
						return
					}
				}
			}
		}()
		return w.Answer("POST")
	}
	res, body := drip("GET /healthz HTTP/1.1\r\nHost: a\r\n", "X: y\r\n", 50*time.Millisecond)
	wantError(t, "a head line by line", res, body, 408)
	res, body = drip(postHead(keyField, 1000), " ", 50*time.Millisecond)
	wantError(t, "a body byte by byte", res, body, 408)
	res, body = drip(wiretest.CRLF("POST /api/publish HTTP/1.1\nHost: a\n"+keyField+"Transfer-Encoding: chunked\n\n"), "1\r\n \r\n", 50*time.Millisecond)
	wantError(t, "a body chunk by chunk", res, body, 408)
	// Faster than a KiB per second takes longer than the timeout and is served.
	pad := 40 << 10
	res, body = drip(postHead(keyField, pad+len(publishBody)), strings.Repeat(" ", pad/8), 100*time.Millisecond)
	if res.StatusCode != 400 { // the rest of the drip is white space only
		t.Errorf("a steady body: %d %s", res.StatusCode, body)
	}
	w := g.dial(t)
	if !w.Closed() {
		t.Error("a silent connection stays open")
	}
	w = g.dial(t)
	w.Send(wiretest.CRLF("GET /healthz HTTP/1.1\nHost: a\n\n"))
	if w.Answer("GET"); !w.Closed() {
		t.Error("an idle connection stays open")
	}
}

func TestWebSocketCloseCodes(t *testing.T) {
	g := start(t, func(c *config.Config) { c.Push.MaxClientMessage = 1 << 10 })
	f := func(what string, code int, say func(w *wiretest.Conn)) {
		t.Helper()
		w := g.ws(t, "channel=a", "")
		say(w)
		if got := w.CloseCode(); got != code {
			t.Errorf("%s: %d, want %d", what, got, code)
		}
	}
	f("close 1000", 1000, func(w *wiretest.Conn) { w.SendFrame(websocket.OpClose, "\x03\xe8bye") })
	f("close 4000", 4000, func(w *wiretest.Conn) { w.SendFrame(websocket.OpClose, "\x0f\xa0") })
	f("empty close", 1005, func(w *wiretest.Conn) { w.SendFrame(websocket.OpClose, "") })
	f("unmasked frame", 1002, func(w *wiretest.Conn) { w.Send("\x81\x01x") })
	f("reserved opcode", 1002, func(w *wiretest.Conn) { w.SendFrame(3, "x") })
	f("binary", 1003, func(w *wiretest.Conn) { w.SendFrame(websocket.OpBinary, "x") })
	f("bad UTF-8", 1007, func(w *wiretest.Conn) { w.SendFrame(websocket.OpText, "\xff") })
	f("too big", 1009, func(w *wiretest.Conn) { w.SendFrame(websocket.OpText, strings.Repeat("x", 2000)) })
	w := g.ws(t, "channel=a", "")
	w.SendFrame(websocket.OpText, `{"type":"ping"}`)
	if op, b := w.Frame(); op != websocket.OpText || string(b) != `{"type":"pong"}` {
		t.Errorf("ping: %v %s", op, b)
	}
	w.SendFrame(websocket.OpPing, "hello")
	if op, b := w.Frame(); op != websocket.OpPong || string(b) != "hello" {
		t.Errorf("ping frame: %v %s", op, b)
	}
}

func TestFramesBehindTheHandshakeAreRead(t *testing.T) {
	g := start(t, withSecret)
	token := mint(t, auth.MintClaims{Subscribe: []string{"**"}})
	for range 2 { // verified, then from the cache
		w := g.dial(t)
		w.Send(wiretest.CRLF("GET /ws?channel=private:a HTTP/1.1\nHost: a\nAuthorization: Bearer "+token+"\n"+wiretest.UpgradeFields+"\n") +
			string(websocket.AppendMaskedFrame(nil, websocket.OpPing, []byte("early"), [4]byte{1})))
		if res := w.Response(); res.StatusCode != 101 {
			t.Fatalf("%d, want 101", res.StatusCode)
		}
		if op, b := w.Frame(); op != websocket.OpPong || string(b) != "early" {
			t.Errorf("%v %s, want the pong", op, b)
		}
	}
}

func TestUnknownQueryParametersAreIgnored(t *testing.T) {
	g := start(t, nil)
	w := g.dial(t)
	w.Send(wiretest.CRLF("GET /sse?x=1&channel=a&y&_=%20 HTTP/1.1\nHost: a\n\n"))
	if res := w.Response(); res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
}
