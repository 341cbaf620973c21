package takeover

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

func pair(t *testing.T) (a, b *Link) {
	t.Helper()
	a, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if b, err = linkOf(f); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestDescriptorsArriveWithTheirFrame(t *testing.T) {
	a, b := pair(t)
	const frames, files = 3, MaxFiles
	go func() {
		for i := range frames {
			var fds []int
			var open []*os.File
			for j := range files {
				f, err := os.CreateTemp(t.TempDir(), "")
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = f.WriteString(strings.Repeat("x", i*files+j))
				open, fds = append(open, f), append(fds, int(f.Fd()))
			}
			if err := a.Send(Conns, bytes.Repeat([]byte{byte(i)}, 1<<20), fds...); err != nil {
				t.Error(err)
			}
			for _, f := range open {
				_ = f.Close()
			}
		}
		a.Close()
	}()
	for i := range frames {
		f, err := b.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if f.Type != Conns || len(f.Body) != 1<<20 || f.Body[0] != byte(i) || len(f.Files) != files {
			t.Fatalf("frame %d: %v of %d bytes with %d descriptors", i, f.Type, len(f.Body), len(f.Files))
		}
		for j, fd := range f.Files {
			file := os.NewFile(uintptr(fd), "")
			if at, err := file.Seek(0, io.SeekEnd); err != nil || at != int64(i*files+j) {
				t.Errorf("descriptor %d of frame %d: %d bytes, %v", j, i, at, err)
			}
			_ = file.Close()
		}
	}
	if _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestWhatIsNoFrameIsRefused(t *testing.T) {
	f := func(text string) {
		t.Helper()
		a, b := pair(t)
		if _, err := a.conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if x, err := b.Receive(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%q: %v, %v", text, x, err)
		}
	}
	f("\x01\x00\x00")                         // cut off
	f("\x01\x00\x00\x00\x00\x00\x00\x05abc")  // its body, too
	f("\x06\x00\x00\x01\x00\x00\x00\x00")     // a descriptor that did not come
	f("\x01\x00\x00\x00\xff\xff\xff\xffabcd") // too long
}

func TestVersionsMeetAtTheHighestThatBothSpeak(t *testing.T) {
	f := func(lowest, highest uint64, want int) {
		t.Helper()
		a, b := pair(t)
		if err := a.Send(Hello, State{}.Uint(helloMin, lowest).Uint(helloMax, highest).String(helloBuild, "other").Uint(helloPID, 42)); err != nil {
			t.Fatal(err)
		}
		p, err := b.peer()
		if (err == nil) != (want > 0) || err == nil && (p.Version != want || p.Build != "other" || p.PID != 42) {
			t.Errorf("%d to %d: %+v, %v; want version %d", lowest, highest, p, err, want)
		}
	}
	f(Version, Version, Version)
	f(1, Version+1, Version)           // a newer one that speaks this, too
	f(Version-1, Version-1, Version-1) // the one before
	f(Version+1, Version+2, 0)
	f(0, 0, 0)
}

func TestWhenTheLogWasOpenedIsSent(t *testing.T) {
	f := func(want time.Time) {
		t.Helper()
		a, b := pair(t)
		c := &Child{Link: a}
		if err := errors.Join(c.Send(Revoked, []byte("[]")), c.SendOpened(want), c.Send(LogEnd, nil)); err != nil {
			t.Fatal(err)
		}
		var got time.Time
		revoked := ""
		err := (&Parent{Link: b}).ReceiveLog(func(kind Type, piece []byte, _ []int) (err error) {
			if kind == Revoked {
				revoked = string(piece)
				return nil
			}
			got, err = ReadOpened(piece)
			return err
		})
		if err != nil || !got.Equal(want) || revoked != "[]" {
			t.Errorf("%v, %v, revocations %q; want %v", got, err, revoked, want)
		}
	}
	f(time.Time{})
	f(time.UnixMilli(1234567))
}

// Sockets come among the pieces of the log, with the loop that they are of and numbers of their own.
func TestSocketsComeBeforeTheLogEnds(t *testing.T) {
	a, b := pair(t)
	c := &Child{Link: a}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	fds := []int{int(r.Fd()), int(w.Fd())}
	first, err1 := c.SendSockets(3, fds)
	second, err2 := c.SendSockets(0, fds[:1])
	if err := errors.Join(err1, err2); err != nil || first != 0 || second != 2 {
		t.Fatalf("numbers %d and %d, %v; want 0 and 2", first, second, err)
	}
	settled := make(chan error, 1)
	go func() { settled <- errors.Join(c.SettleAhead(), c.Send(LogEnd, nil)) }()
	var got []int
	err = (&Parent{Link: b}).ReceiveLog(func(kind Type, body []byte, files []int) error {
		loop, err := ReadSockets(body)
		got = append(got, loop, len(files))
		for _, fd := range files {
			_ = os.NewFile(uintptr(fd), "").Close()
		}
		if kind != Sockets {
			t.Errorf("got %v", kind)
		}
		return err
	})
	if want := []int{3, 2, 0, 1}; err != nil || !slices.Equal(got, want) {
		t.Errorf("loops and sockets %v, %v; want %v", got, err, want)
	}
	if err := <-settled; err != nil {
		t.Errorf("the answer when all was received: %v", err)
	}
	for _, s := range []State{nil, State{}.Uint(socketsLoop, 1<<40), {1}} {
		if loop, err := ReadSockets(s); err == nil {
			t.Errorf("%x: loop %d", []byte(s), loop)
		}
	}
}

// What is sent when all before was read does not wait for the other process, however small the room between them is.
func TestSocketsWaitForThoseBefore(t *testing.T) {
	a, b := pair(t)
	c := &Child{Link: a}
	small := func(fd int) int { _ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1); return 0 }
	if _, err := c.Unread(small); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	read := make(chan error, 1)
	for range 100 {
		go func() {
			f, err := b.Receive()
			if err == nil {
				f.Close()
			}
			read <- err
		}()
		err := c.AwaitRead(time.Now().Add(time.Minute), sys.Unsent)
		if err == nil {
			_, err = c.SendSockets(0, []int{int(r.Fd())})
		}
		if err := errors.Join(err, <-read); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.SendSockets(0, []int{int(r.Fd())}); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitRead(time.Now(), sys.Unsent); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("what nothing reads: %v", err)
	}
}

func TestARefusalArrivesInWords(t *testing.T) {
	a, b := pair(t)
	if err := a.Send(Refused, []byte("the port is taken")); err != nil {
		t.Fatal(err)
	}
	_, err := b.expect(Prepared)
	if e, ok := errors.AsType[*RefusedError](err); !ok || e.Reason != "the port is taken" {
		t.Errorf("%v", err)
	}
}

// A batch that follows after the commit is answered before it is committed, and the answer is waited for within a bound.
func TestABatchThatFollowsIsAnswered(t *testing.T) {
	a, b := pair(t)
	c, p := &Child{Link: a}, &Parent{Link: b}
	if _, err := c.SendConns(2, AppendRecord(AppendRecord(nil, 0, State{}), 0, State{}), nil); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		var got []Type
		for len(got) < 2 {
			kind, _, err := p.ReceiveConns()
			if err != nil {
				answered <- err
				return
			}
			got = append(got, kind)
		}
		if want := []Type{Conns, Frozen}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		answered <- p.SendReady([]int{1})
	}()
	c.SetDeadline(time.Now().Add(time.Minute))
	refused, err := c.SettleFollowing()
	if err := errors.Join(err, <-answered); err != nil || len(refused) != 1 || !refused[1] {
		t.Errorf("refused %v, %v; want the second", refused, err)
	}
	read := make(chan error, 1)
	go func() { read <- p.AwaitCommit() }()
	if err := errors.Join(c.CommitFollowing(time.Now().Add(time.Minute), sys.Unsent), <-read); err != nil {
		t.Error(err)
	}
	c.SetDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.SettleFollowing(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without an answer: %v", err)
	}
}

// A commit that the other process does not read, or did not before it ended, has made nothing that process's.
func TestACommitThatIsNotReadIsKnown(t *testing.T) {
	a, b := pair(t)
	c := &Child{Link: a}
	if err := c.CommitFollowing(time.Now(), sys.Unsent); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one that is not read: %v", err)
	}
	unread := func(fd int) int {
		n := sys.Unsent(fd)
		b.Close()
		return n
	}
	if err := c.CommitFollowing(time.Now().Add(time.Minute), unread); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the other end was closed meanwhile: %v", err)
	}
	if err := c.CommitFollowing(time.Now().Add(time.Minute), sys.Unsent); err == nil {
		t.Error("the other end was closed before")
	}
}
