package http1

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestComposedRequestsAreReadAsNetHTTPReadsThem puts requests together from
// pieces that parsers have disagreed on, then changes a byte of some. Blind
// fuzzing seldom gets past the Host field; this does.
func TestComposedRequestsAreReadAsNetHTTPReadsThem(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	pick := func(from []string) string { return from[rng.IntN(len(from))] }
	methods := []string{"GET", "GET", "POST", "POST", "OPTIONS", "HEAD", "get", "X-Y", "CONNECT", "PRI"}
	targets := []string{"/", "/", "/a?b", "//a", "/%41", "/?%", "*", "http://a", "http://a?b", "http://A:80/", "https://a/x", "http://[::1]/",
		"http://b/", "/a;b:c@d", "/../%2e", "/?a?b", "http://a/%zz", "/{}", "a:80", "?", "/:", "HTTP://a:/"}
	versions := []string{"HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0"}
	names := []string{"Content-Length", "content-length", "Transfer-Encoding", "Connection", "Upgrade", "Expect", "Trailer", "X", "Host", "Pragma", "Cookie"}
	values := []string{"0", "5", "5", "05", "+5", "5, 5", "-1", "9223372036854775807", "9223372036854775808", "chunked", "Chunked", "chunked, chunked",
		"gzip, chunked", "identity", "close", "keep-alive", "keep-alive, close", "upgrade", "websocket", "100-continue", "Content-Length", "X", "", "a", "[::1]"}
	ends := []string{"\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n ", "\r\n\t", " \r\n"}
	accepted := 0
	const rounds = 40_000
	for range rounds {
		var s strings.Builder
		s.WriteString(pick(methods) + " " + pick(targets) + " " + pick(versions) + "\r\n")
		if rng.IntN(10) > 0 {
			s.WriteString("Host: " + pick([]string{"a", "a", "a:80", "[::1]", "A"}) + "\r\n")
		}
		for range rng.IntN(4) {
			s.WriteString(pick(names) + pick([]string{":", ": ", ": ", ":\t", " :"}) + pick(values) + pick(ends))
		}
		b := []byte(s.String() + "\r\n")
		if rng.IntN(4) == 0 {
			b[rng.IntN(len(b))] = byte(rng.IntN(256))
		}
		r, n, _ := parse(t, string(b), Limits{})
		if n > 0 {
			accepted++
			agreeOnRequest(t, &r, b[:n])
			writeAgain(t, &r)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if accepted < rounds/20 {
		t.Errorf("only %d of %d accepted: the pieces do not fit together", accepted, rounds)
	}
}
