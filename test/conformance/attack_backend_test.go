package conformance

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A hostile backend reads its requests with net/http and answers each with the last
// part of its path, its token, in a way that it chooses by chance: most of them break
// HTTP. No client may ever see the token of another, nor what the backend says in
// answer to no request.
type hostile struct {
	addr string
	// requested counts the requests, by manner.
	requested []atomic.Int64
	// unasked counts requests whose path no client has requested.
	unasked atomic.Int64
}

// planted is what a backend says without a request: it must reach no client.
const planted = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-Token: planted\r\n\r\nplanted"

// A manner is one way to answer. It reports whether the connection continues.
type manner func(c net.Conn, req *http.Request, token string) (keepOpen bool)

func reply(token string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Token: %s\r\nContent-Length: %d\r\n\r\n%s", token, len(token), token)
}

// say answers with text, in which $ is the token and # its length, after the body was read.
func say(text string, keepOpen bool) manner {
	return func(c net.Conn, req *http.Request, token string) bool {
		_, _ = io.Copy(io.Discard, req.Body) // the client may have left
		text := strings.NewReplacer("\n", "\r\n", "$", token, "#", fmt.Sprint(len(token)), "%", fmt.Sprintf("%x", len(token))).Replace(text)
		if _, err := io.WriteString(c, text); err != nil {
			return false
		}
		return keepOpen
	}
}

// bodyless wraps a manner that is no answer to HEAD.
func bodyless(m manner) manner {
	return func(c net.Conn, req *http.Request, token string) bool {
		if req.Method == "HEAD" {
			return say("HTTP/1.1 200 OK\nX-Token: $\nContent-Length: #\n\n", true)(c, req, token)
		}
		return m(c, req, token)
	}
}

func manners() []manner {
	const good = "HTTP/1.1 200 OK\nX-Token: $\nContent-Length: #\n\n$"
	const head = "HTTP/1.1 200 OK\nX-Token: $\n"
	const chunks = head + "Transfer-Encoding: chunked\n\n"
	evil := strings.ReplaceAll(planted, "\r\n", "\n")
	whole := []manner{
		say(good, true), say(good, true), say(good, true), say(good, true),
		say(chunks+"%\n$\n0\n\n", true),
		say(chunks+"1;a=\"b\"\nx\n0\nX-Trailer: y\nTransfer-Encoding: chunked\nContent-Length: 3\n\n", true),
		say(head+"Connection: close\nContent-Length: #\n\n$", true), // and does not close
		say(head+"\n$", false),
		say("HTTP/1.0 200 OK\nX-Token: $\n\n$", false),
		say("HTTP/1.1 103 Early Hints\nX-Token: $\n\n"+good, true),
		say("HTTP/1.1 100 Continue\n\nHTTP/1.1 100 Continue\n\n"+good, true),
		// More than was asked for.
		say(good+evil, true),
		say(good+"\n", true),
		say(good+"HTTP/1.1 100 Continue\n\n", true),
		say(chunks+"%\n$\n0\n\n"+evil, true),
		say("HTTP/1.1 204 No Content\nX-Token: $\n\n"+evil, true),
		say("HTTP/1.1 304 Not Modified\nX-Token: $\nContent-Length: 500\n\n"+evil, true),
		say("HTTP/1.1 204 No Content\nX-Token: $\nContent-Length: 7\n\n"+evil, true),
		say("HTTP/1.1 205 Reset Content\nX-Token: $\nContent-Length: 0\n\n"+evil, true),
		say("HTTP/1.1 103 Early Hints\nContent-Length: 77\n\n"+evil, true),
		// Framing that may be read in two ways.
		say(head+"Content-Length: #\nTransfer-Encoding: chunked\n\n0\n\n"+evil, true),
		say(head+"Content-Length: #\nContent-Length: 0\n\n$"+evil, true),
		say(head+"Content-Length: -1\n\n"+evil, true),
		say(head+"Content-Length: 0x0\n\n"+evil, true),
		say(head+"Content-Length: 18446744073709551616\n\n"+evil, true),
		say(head+"Transfer-Encoding: xchunked\n\n0\n\n"+evil, true),
		say(head+"Transfer-Encoding : chunked\n\n0\n\n"+evil, true),
		say(head+" Content-Length: 0\n\n"+evil, true),
		say(chunks+"-1\n"+evil, true),
		say(chunks+"fffffffffffffffff1\n"+evil, true),
		say(chunks+"0x0\n\n"+evil, true),
		say(chunks+"%\n$0\n\n"+evil, true),
		say("HTTP/1.1 101 Switching Protocols\nConnection: upgrade\nUpgrade: websocket\n\n"+evil, true),
		say("HTTP/1.1 101 Switching Protocols\nConnection: upgrade\nUpgrade: h2c\n\n"+evil, true),
		say("HTTP/2.0 200 OK\n\n"+evil, true),
		say("garbage\n\n"+evil, true),
		// Ends.
		say("", false), say(head, false), say(head+"Content-Length: 500\n\n$", false), say(chunks+"500\n$", false),
		say(head+"Content-Length: 500\n\n$", true),
		// An answer before the request is there, which is then not read.
		func(c net.Conn, _ *http.Request, token string) bool {
			_, _ = io.WriteString(c, reply(token))
			return false
		},
		// An answer before the request is there, which is read afterwards.
		func(c net.Conn, req *http.Request, token string) bool {
			if _, err := io.WriteString(c, reply(token)); err != nil {
				return false
			}
			_, err := io.Copy(io.Discard, req.Body)
			return err == nil
		},
		// 100 (Continue) whether it was requested or not, and the answer at once.
		func(c net.Conn, req *http.Request, token string) bool {
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return false
			}
			_, err := io.WriteString(c, reply(token))
			return err == nil
		},
	}
	for i := range whole {
		whole[i] = bodyless(whole[i])
	}
	// A body where none may be, in one segment with the head.
	return append(whole, func(c net.Conn, req *http.Request, token string) bool {
		_, _ = io.Copy(io.Discard, req.Body)
		_, err := io.WriteString(c, reply(token)+map[bool]string{true: planted}[req.Method == "HEAD"])
		return err == nil
	})
}

// newHostile starts a backend for paths below prefix. It ends with the test.
func newHostile(t testing.TB, prefix string, seed uint64) *hostile {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	all := manners()
	b := &hostile{addr: ln.Addr().String(), requested: make([]atomic.Int64, len(all))}
	backendOn(t, ln, func(n int, c net.Conn) {
		dice := rand.New(rand.NewPCG(seed, uint64(n)))
		r := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			token, ok := strings.CutPrefix(req.URL.Path, prefix)
			if !ok {
				b.unasked.Add(1)
			}
			i := dice.IntN(len(all))
			b.requested[i].Add(1)
			if dice.IntN(8) == 0 {
				time.Sleep(time.Duration(dice.IntN(20)) * time.Millisecond) // a slow backend is the point
			}
			if !all[i](c, req, token) {
				return
			}
		}
	})
	return b
}

// backendOn serves each connection of ln, which are numbered. It ends with the test.
func backendOn(t testing.TB, ln net.Listener, serve func(n int, c net.Conn)) {
	t.Helper()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		open  = map[net.Conn]bool{}
		ended bool
	)
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			if ended {
				_ = c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				defer func() {
					_ = c.Close()
					mu.Lock()
					delete(open, c)
					mu.Unlock()
				}()
				serve(n, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		ended = true
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// stage is backendOn on a port of its own.
func stage(t testing.TB, serve func(n int, c net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	backendOn(t, ln, serve)
	return ln.Addr().String()
}
