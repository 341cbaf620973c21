package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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
			t.Fatalf("the answer is no HTTP: %v", err)
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
