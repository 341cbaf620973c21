package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"
)

// An answer is what a server said on a raw connection.
type answer struct {
	statuses []int
	bodies   []string
	// closed says the server ended the connection, in any way, in time.
	closed bool
}

func (a answer) String() string { return fmt.Sprintf("%d, closed=%v", a.statuses, a.closed) }

// exchange writes raw bytes on a connection of its own and reads responses until
// the server closes, says nothing for quiet, or want responses have come (0: no
// bound).
func exchange(t testing.TB, addr, raw string, want int, quiet time.Duration) answer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server may close before all of it is written; what it said decides.
	_, _ = io.WriteString(conn, raw)
	return responses(t, conn, want, quiet)
}

// A way is how the bytes of an exchange reach the server. None may matter.
type way int

const (
	// atOnce is one write.
	atOnce way = iota
	// inPieces is a segment for every five bytes, so that every rule is also met at
	// the border of two reads.
	inPieces
	// afterwards sends what follows the request once the request is answered.
	afterwards
)

func (w way) String() string { return [...]string{"at once", "in pieces", "afterwards"}[w] }

// follow sends a request and what follows it, and reads like exchange.
func follow(t testing.TB, addr, raw, next string, w way, want int, quiet time.Duration) answer {
	t.Helper()
	if w == atOnce {
		return exchange(t, addr, raw+next, want, quiet)
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(text string) {
		for len(text) > 0 {
			n := min(5, len(text))
			if _, err := io.WriteString(conn, text[:n]); err != nil {
				return // the server has said enough
			}
			text = text[n:]
			runtime.Gosched() // no delay is promised: a piece more or less per read
		}
	}
	if w == inPieces {
		send(raw + next)
		return responses(t, conn, want, quiet)
	}
	send(raw)
	first := responses(t, conn, 1, quiet)
	if len(first.statuses) == 0 {
		return first
	}
	send(next)
	second := responses(t, conn, max(0, want-1), quiet)
	second.statuses = append(first.statuses, second.statuses...)
	second.bodies = append(first.bodies, second.bodies...)
	return second
}

func responses(t testing.TB, conn net.Conn, want int, quiet time.Duration) (a answer) {
	t.Helper()
	r := bufio.NewReader(conn)
	for want == 0 || len(a.statuses) < want {
		_ = conn.SetReadDeadline(time.Now().Add(quiet))
		if _, err := r.Peek(1); err != nil {
			a.closed = !errors.Is(err, os.ErrDeadlineExceeded)
			return a
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("the answer is not HTTP: %v", err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("the answer's body is cut: %v", err)
		}
		a.statuses = append(a.statuses, resp.StatusCode)
		a.bodies = append(a.bodies, string(body))
	}
	return a
}
