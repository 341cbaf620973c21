package job

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// uring sends a frame of so many bytes (setting bytes, 128) to each of so many connections (conns, 256), in
// batches of 64, by what the setting kind names: sendto, one system call each; send, a batch per
// system call of io_uring; fixed, the same from a registered buffer; zerocopy, without a copy
// where the device can; zerocopy-fixed, both; sqpoll, through a kernel thread that polls.
func uring(ctx context.Context, p Params) (Values, error) {
	runtime.LockOSThread() // the ring is this thread's
	defer runtime.UnlockOSThread()
	list, err := pairs(int(p.number("conns", 256)), nil)
	defer func() {
		for _, c := range list {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	send, closeSender, err := sender(p.Set["kind"], list, make([]byte, int(p.number("bytes", 128))))
	if err != nil {
		return nil, err
	}
	defer closeSender()
	const batch = 64
	var took, used time.Duration
	sent := 0
	_, err = repeat(ctx, p.Duration, func() error {
		for from := 0; from < len(list); from += batch {
			to := min(from+batch, len(list))
			began, before := time.Now(), sys.CPUTime()
			if err := send(from, to); err != nil {
				return err
			}
			took, used = took+time.Since(began), used+sys.CPUTime()-before
			sent += to - from
			if err := drain(list[from:to], int(p.number("bytes", 128))); err != nil {
				return err
			}
		}
		return nil
	})
	n := float64(max(sent, 1))
	return Values{"cpu": used.Seconds() / n, "seconds": took.Seconds() / n}, err
}

// drain receives n bytes from each.
func drain(list []pair, n int) error {
	buf := make([]byte, 64<<10)
	for _, c := range list {
		for got := 0; got < n; {
			k, errno := sys.Recv(c.far, buf)
			if errno != 0 && errno != sys.EAGAIN {
				return errno
			}
			got += max(k, 0)
		}
	}
	return nil
}

// sender returns what sends b to the connections from one number to another.
func sender(kind string, list []pair, b []byte) (send func(from, to int) error, closeSender func(), err error) {
	if kind == "sendto" {
		return func(from, to int) error {
			for _, c := range list[from:to] {
				if n, errno := sys.Send(c.near, b); errno != 0 || n < len(b) {
					return fmt.Errorf("sent %d of %d bytes: %w", n, len(b), errno)
				}
			}
			return nil
		}, func() {}, nil
	}
	r := &ringSender{kind: kind, b: b, files: make([]int32, len(list))}
	if err := r.open(list); err != nil {
		return nil, nil, err
	}
	return r.send, r.ring.Close, nil
}

// A ringSender sends by io_uring.
type ringSender struct {
	kind  string
	ring  *sys.Ring
	files []int32 // direct descriptors
	b     []byte
	// owed are the notifications of sends without a copy that have not come.
	owed int
}

func (r *ringSender) open(list []pair) (err error) {
	if r.kind == "sqpoll" {
		r.ring, err = sys.OpenPolledRing(128, 1024, 100*time.Millisecond)
	} else {
		r.ring, err = sys.OpenRing(128, 1024)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			r.ring.Close()
		}
	}()
	if err = r.ring.Enable(); err != nil {
		return err
	}
	ops := map[string]uint8{"send": sys.OpSend, "sqpoll": sys.OpSend, "fixed": sys.OpWriteFixed, "zerocopy": sys.OpSendZC, "zerocopy-fixed": sys.OpSendZC}
	op, known := ops[r.kind]
	if !known {
		return fmt.Errorf("kind %q: sendto, send, fixed, zerocopy, zerocopy-fixed or sqpoll", r.kind)
	}
	if _, ok := r.ring.Supports(op, sys.OpFilesUpdate); !ok {
		return fmt.Errorf("the kernel's io_uring has no %s", r.kind)
	}
	if err = r.ring.RegisterFiles(len(list)); err != nil {
		return err
	}
	if err = sys.RegisterBuffer(r.ring, r.b); err != nil {
		return err
	}
	for i, c := range list {
		r.files[i] = int32(c.near)
	}
	r.ring.Next().PrepInstall(r.files)
	return r.collect(1, len(r.files))
}

// send sends to the connections from one number to another, and waits for the results.
func (r *ringSender) send(from, to int) error {
	// The memory of the batch before must be free; its notifications come with the acknowledgements.
	for r.owed > 0 {
		if err := r.collect(0, 0); err != nil {
			return err
		}
	}
	for _, file := range r.files[from:to] {
		s := r.ring.Next()
		switch r.kind {
		case "fixed":
			s.PrepWriteFixed(uint32(file), r.b)
		case "zerocopy", "zerocopy-fixed":
			s.PrepSendZC(uint32(file), r.b, r.kind == "zerocopy-fixed")
		default:
			s.PrepSend(uint32(file), r.b)
		}
	}
	return r.collect(to-from, len(r.b))
}

// collect submits what was written and takes n results, each of which must be want; with n = 0
// one notification.
func (r *ringSender) collect(n, want int) error {
	if err := r.submit(); err != nil {
		return err
	}
	for one := n == 0; n > 0 || one; {
		c, ok := r.ring.Pop()
		switch {
		case !ok:
			r.ring.Popped()
			if errno := r.ring.Wait(time.Second); errno != 0 && errno != sys.ETIME {
				return fmt.Errorf("wait for io_uring: %w", errno)
			}
		case c.Notification():
			r.owed--
			one = false
		case int(c.Res) != want:
			return fmt.Errorf("a result of %d, want %d: %w", c.Res, want, c.Errno())
		default:
			if c.More() {
				r.owed++
			}
			n--
		}
	}
	r.ring.Popped()
	return nil
}

func (r *ringSender) submit() error {
	submit := r.ring.Submit
	if r.kind == "sqpoll" {
		submit = func() syscall.Errno { return sys.WakeRing(r.ring) }
	}
	if errno := submit(); errno != 0 {
		return fmt.Errorf("submit to io_uring: %w", errno)
	}
	return nil
}
