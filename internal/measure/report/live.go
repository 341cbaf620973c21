package report

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// livePause is the least time between two views: 4 a second.
const livePause = 250 * time.Millisecond

// A Live rewrites the last few lines of a terminal. Where there is no terminal it
// shows nothing at all. Any goroutine may call its methods.
type Live struct {
	// Fixed at creation.
	out   io.Writer
	on    bool
	color bool
	size  func() int // columns

	mu    sync.Mutex
	lines int // that stand there now
	last  time.Time
	now   func() time.Time
}

// NewLive is a view on w; it is on if w is a terminal that can be rewritten.
func NewLive(w io.Writer) *Live {
	l := &Live{out: w, now: time.Now, size: func() int { return 80 }}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return l
	}
	l.on = true
	l.color = os.Getenv("NO_COLOR") == ""
	l.size = func() int {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
		return 80
	}
	return l
}

// Enabled reports whether anything is shown; anyone who would have to work for a view may ask.
func (l *Live) Enabled() bool { return l.on }

// Show replaces the view by these lines, cut to the width. Called more often than
// four times a second it does nothing.
func (l *Live) Show(lines ...string) {
	if !l.on {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if !l.last.IsZero() && now.Sub(l.last) < livePause {
		return
	}
	l.last = now
	var b strings.Builder
	b.WriteString(l.home())
	width := l.size()
	for _, s := range lines {
		// The last column stays free: some terminals wrap when it is filled.
		b.WriteString(cut(s, width-1) + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	l.lines = len(lines)
	fmt.Fprint(l.out, b.String())
}

// Clear takes the view away.
func (l *Live) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on && l.lines > 0 {
		fmt.Fprint(l.out, l.home()+"\x1b[J")
		l.lines = 0
	}
}

// home brings the cursor to the first line of the view. Called with mu held.
func (l *Live) home() string {
	if l.lines == 0 {
		return "\r"
	}
	return fmt.Sprintf("\x1b[%dA\r", l.lines)
}

// Paint colours a text by a state, unless colour is not wanted.
func (l *Live) Paint(s State, text string) string {
	code := map[State]string{Good: "32", Warn: "33", Bad: "31", Unknown: "90"}[s]
	if !l.color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Dim makes a text step back, unless colour is not wanted.
func (l *Live) Dim(text string) string { return l.Paint(Unknown, text) }

// cut shortens a line to a number of columns; escape sequences take none, wide
// characters two.
func cut(s string, columns int) string {
	var b strings.Builder
	used, painted := 0, false
	for i := 0; i < len(s); {
		if n := sequence(s[i:]); n > 0 {
			painted = s[i:i+n] != "\x1b[0m"
			b.WriteString(s[i : i+n])
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			continue
		}
		w := RuneWidth(r)
		if used+w > columns {
			break
		}
		used += w
		b.WriteRune(r)
	}
	if painted {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}

// sequence is the length of a colour sequence at the beginning of s, or 0.
func sequence(s string) int {
	if !strings.HasPrefix(s, "\x1b[") {
		return 0
	}
	for i := 2; i < len(s); i++ {
		switch c := s[i]; {
		case c == 'm':
			return i + 1
		case c != ';' && (c < '0' || c > '9'):
			return 0
		}
	}
	return 0
}

// RuneWidth is how many columns of a terminal r takes.
func RuneWidth(r rune) int {
	switch {
	case unicode.Is(unicode.Mn, r):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0x1f300 && r <= 0x1faff:
		return 2
	}
	return 1
}

// Spark draws the last values in as many columns at most, from zero to their
// greatest. What is not finite is a space.
func Spark(values []float64, columns int) string {
	const bars = "▁▂▃▄▅▆▇█"
	if columns < len(values) {
		values = values[len(values)-max(columns, 0):]
	}
	most := 0.0
	for _, v := range values {
		if finite(v) {
			most = max(most, clampValue(v))
		}
	}
	levels := []rune(bars)
	var b strings.Builder
	for _, v := range values {
		switch {
		case !finite(v):
			b.WriteRune(' ')
		case most <= 0 || v <= 0:
			b.WriteRune(levels[0])
		default:
			i := int(math.Round(clampValue(v) / most * float64(len(levels)-1)))
			b.WriteRune(levels[i])
		}
	}
	return b.String()
}
