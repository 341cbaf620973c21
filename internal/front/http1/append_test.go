package http1

import (
	"net/http"
	"testing"
	"time"
)

func TestAppendField(t *testing.T) {
	f := func(name, value, want string) {
		t.Helper()
		if got := string(AppendField([]byte("\x00"), name, value)); got != "\x00"+want {
			t.Errorf("AppendField(%q, %q) = %q, want %q", name, value, got, want)
		}
	}
	f("A", "b", "A: b\r\n")
	f("A", "", "A: \r\n")
	f("A", "b\tc é", "A: b\tc é\r\n")
	f("A", "b\r\nX: y", "A: b  X: y\r\n")
	f("A", "\r\n\r\nGET / HTTP/1.1\r\n", "A:     GET / HTTP/1.1  \r\n")
	f("A", "b\x00c\x7fd\x1b", "A: b c d \r\n")
	f("A", "b\n", "A: b \r\n")
	f("", "b", "")
	f("A B", "b", "")
	f("A:", "b", "")
	f("A\r\nB", "b", "")
	f("É", "b", "")
}

func TestWhatIsValidComesBackAsItWas(t *testing.T) {
	f := func(name, value string, want bool) {
		t.Helper()
		if got := ValidName(name) && ValidValue(value); got != want {
			t.Errorf("%q, %q: valid %v, want %v", name, value, got, want)
		}
		head := AppendEnd(AppendField([]byte("GET / HTTP/1.0\r\n"), name, value))
		var r Request
		_, err := ParseRequest(&r, head, Limits{})
		same := err == nil && len(r.Fields) == 1 && string(r.Fields[0].Name) == name && string(r.Fields[0].Value) == value
		if err != nil || same != want {
			t.Errorf("%q, %q: came back as %q, %v", name, value, r.Fields, err)
		}
	}
	f("A", "b", true)
	f("A", "", true)
	f("A", "b \t c", true)
	f("A", "é\xff", true)
	f("A", " b", false)
	f("A", "b\t", false)
	f("A", "b\nc", false)
	f("A", "b\x00", false)
	f("A b", "c", false)
	f("", "c", false)
}

func TestAppendResponse(t *testing.T) {
	f := func(got []byte, want string) {
		t.Helper()
		if string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(AppendResponse(nil, 404, true, "text/plain", "no\n"),
		"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nno\n")
	f(AppendResponse(nil, 400, false, "", []byte(nil)),
		"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	f(AppendResponse(nil, 204, true, "", ""), "HTTP/1.1 204 No Content\r\n\r\n")
	f(AppendResponse(nil, 304, true, "", "x"), "HTTP/1.1 304 Not Modified\r\n\r\n")
	f(AppendResponse(nil, 100, true, "", ""), "HTTP/1.1 100 Continue\r\n\r\n")
	f(AppendStatusLine(nil, 799), "HTTP/1.1 799 \r\n")
	f(AppendRequestLine(nil, "GET", "/a?b"), "GET /a?b HTTP/1.1\r\n")
	f(AppendIntField(nil, "Age", -1), "Age: -1\r\n")
	f(AppendIntField(nil, "A:", 1), "")
	f(AppendDate(nil, time.Date(1994, 11, 6, 9, 49, 37, 5, time.FixedZone("", 3600))), "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n")
	f(AppendChunkSize(nil, 255), "ff\r\n")
}

func TestStatusTextsAreTheRegisteredOnes(t *testing.T) {
	// Renamed by RFC 9110 §15.5; net/http keeps the earlier phrases.
	renamed := map[int]string{413: "Content Too Large", 414: "URI Too Long", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}
	for status := -1; status < 1100; status++ {
		got := StatusText(status)
		want := http.StatusText(status)
		if renamed[status] != "" {
			want = renamed[status]
		}
		if got != "" && got != want {
			t.Errorf("StatusText(%d) = %q, want %q", status, got, want)
		}
	}
	for _, e := range []*Error{errLineTooLong, errHeadTooLarge, errMethodTooLong, errVersion, errHost, errExpect, errStatusLine} {
		if StatusText(e.Status) == "" {
			t.Errorf("%v has no text", e)
		}
	}
}

func TestHasToken(t *testing.T) {
	f := func(list, token string, want bool) {
		t.Helper()
		if got := HasToken([]byte(list), token); got != want {
			t.Errorf("HasToken(%q, %q) = %v", list, token, got)
		}
	}
	f("upgrade", "Upgrade", true)
	f("keep-alive,\tUPGRADE ", "upgrade", true)
	f("a,,upgrade,", "upgrade", true)
	f("upgraded", "upgrade", false)
	f("up grade", "upgrade", false)
	f("", "upgrade", false)
}
