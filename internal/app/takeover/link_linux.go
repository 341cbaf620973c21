package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Type reports what a frame is.
type Type uint8

// The frames, in the order in which they come. "old" passes on to "new".
const (
	Hello     Type = iota + 1 // both: a State of helloFields
	Listeners                 // old: a State of listenerFields, with the sockets
	Prepared                  // new: everything is built and validated; a State of preparedFields
	Log                       // old: a piece of the log that lives in the process
	LogEnd                    // old: all of it was sent, or there is none
	Conns                     // old: connections, see AppendRecord, each with its descriptors
	Frozen                    // old: these are all for now
	Ready                     // new: a State of readyFields; all was understood
	Commit                    // old: new is the server now
	Serving                   // new: it serves
	Done                      // old: nothing more comes
	Refused                   // both: the takeover is off; a text
	Revoked                   // old: with the log, some of the revocations that live in the process; JSON
	Sockets                   // old: before the end of the log, sockets of connections of a loop; a State of socketsFields. None: new answers the same
	Keys                      // old: before the end of the log, idempotency keys that the embedded server need not read; see the broker's ImportKeys
)

func (t Type) String() string {
	names := [...]string{"", "hello", "listeners", "prepared", "log", "log end", "connections", "frozen", "ready", "commit", "serving", "done", "refused", "revocations", "sockets", "keys"}
	if int(t) < len(names) && t != 0 {
		return names[t]
	}
	return fmt.Sprintf("frame %d", uint8(t))
}

const headLen = 8 // type, 0, descriptors (2 bytes), length of the body (4 bytes)

// A Frame is one message between the processes.
type Frame struct {
	Type  Type
	Body  []byte
	Files []int // descriptors, close-on-exec; the receiver closes them
}

// Close closes the frame's descriptors.
func (f *Frame) Close() {
	for _, fd := range f.Files {
		_ = syscall.Close(fd)
	}
	f.Files = nil
}

// A Link is one end of the socket between the processes. Send may be called by several
// goroutines, Receive by one.
type Link struct {
	conn *net.UnixConn

	mu   sync.Mutex // serialises Send
	head [headLen]byte
}

// Pair makes a link and the other end, which is for a child process.
func Pair() (*Link, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("takeover: socketpair: %w", err)
	}
	other := os.NewFile(uintptr(fds[1]), "takeover")
	l, err := linkOf(os.NewFile(uintptr(fds[0]), "takeover"))
	if err != nil {
		_ = other.Close()
		return nil, nil, err
	}
	return l, other, nil
}

// linkOf makes a link of f, which it closes.
func linkOf(f *os.File) (*Link, error) {
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("takeover: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("takeover: the inherited descriptor is not a Unix socket")
	}
	return &Link{conn: u}, nil
}

// SetDeadline bounds what is sent and received from now on; the zero Time: no bound.
func (l *Link) SetDeadline(t time.Time) { _ = l.conn.SetDeadline(t) }

// Close ends the link: the other process finds out.
func (l *Link) Close() { _ = l.conn.Close() }

// Alive returns an error if the other process has ended the link. It reads nothing.
func (l *Link) Alive() error {
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var peeked error
	err = raw.Control(func(fd uintptr) {
		n, _, peeked = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	switch {
	case err != nil:
		return err
	case errors.Is(peeked, syscall.EAGAIN):
		return nil
	case peeked == nil && n == 0:
		return io.ErrUnexpectedEOF
	}
	return peeked
}

// Unread returns how much of what was sent the other process has not read, as of, which is called with the socket, has it.
func (l *Link) Unread(of func(fd int) int) (n int, err error) {
	raw, err := l.conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n = of(int(fd)) })
	}
	return n, err
}

// Send sends a frame. files stay the caller's.
func (l *Link) Send(t Type, body []byte, files ...int) error {
	if len(body) > MaxBody || len(files) > MaxFiles {
		return fmt.Errorf("takeover: a frame of %d bytes and %d descriptors, at most %d and %d", len(body), len(files), MaxBody, MaxFiles)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.head = [headLen]byte{0: byte(t)}
	binary.BigEndian.PutUint16(l.head[2:], uint16(len(files)))
	binary.BigEndian.PutUint32(l.head[4:], uint32(len(body)))
	var rights []byte
	if len(files) > 0 {
		rights = syscall.UnixRights(files...)
	}
	if err := l.sendHead(rights); err != nil {
		return fmt.Errorf("takeover: send %v: %w", t, err)
	}
	if len(body) == 0 {
		return nil // the other process may have acted on it, and have ended
	}
	if _, err := l.conn.Write(body); err != nil {
		return fmt.Errorf("takeover: send %v: %w", t, err)
	}
	return nil
}

// sendHead sends the head with the descriptors. The kernel bounds those that are on their
// way, by user: it is tried again until the other process has taken some.
func (l *Link) sendHead(rights []byte) error {
	for tries := 0; ; tries++ {
		n, _, err := l.conn.WriteMsgUnix(l.head[:], rights, nil)
		switch {
		case errors.Is(err, syscall.ETOOMANYREFS) && tries < 2000:
			time.Sleep(time.Millisecond)
		case err == nil && n < headLen:
			_, err = l.conn.Write(l.head[n:])
			return err
		default:
			return err
		}
	}
}

// Receive returns the next frame; io.EOF says that the other process has ended the link.
func (l *Link) Receive() (*Frame, error) {
	var head [headLen]byte
	oob := make([]byte, syscall.CmsgSpace(4*MaxFiles))
	n, oobn, flags, _, err := l.conn.ReadMsgUnix(head[:], oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	f := &Frame{}
	if err := f.takeFiles(oob[:oobn]); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := io.ReadFull(l.conn, head[n:]); err != nil {
		f.Close()
		return nil, noEOF(err)
	}
	f.Type = Type(head[0])
	files, size := int(binary.BigEndian.Uint16(head[2:])), binary.BigEndian.Uint32(head[4:])
	switch {
	case size > MaxBody:
		err = fmt.Errorf("takeover: a %v frame of %d bytes, at most %d", f.Type, size, MaxBody)
	case flags&syscall.MSG_CTRUNC != 0 || files != len(f.Files):
		err = fmt.Errorf("takeover: %d of %d descriptors arrived: raise the limit of open files (LimitNOFILE)", len(f.Files), files)
	default:
		f.Body = make([]byte, size)
		_, err = io.ReadFull(l.conn, f.Body)
		err = noEOF(err)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Frame) takeFiles(oob []byte) error {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("takeover: %w", err)
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return fmt.Errorf("takeover: %w", err)
		}
		f.Files = append(f.Files, fds...)
	}
	return nil
}

// noEOF makes an end within a frame an error.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// A Record is one connection.
type Record struct {
	State State
	Files []int
}

// Records takes a Conns frame apart. The descriptors are the records' then; after an error
// they are closed.
func (f *Frame) Records() (list []Record, err error) {
	rest, files := f.Body, f.Files
	defer func() {
		if err != nil {
			f.Close()
		}
		f.Files = nil
	}()
	for len(rest) > 0 {
		n, k := binary.Uvarint(rest)
		if k <= 0 || n > uint64(len(files)) {
			return nil, fmt.Errorf("%w: a record's descriptors", ErrState)
		}
		rest = rest[k:]
		size, k := binary.Uvarint(rest)
		if k <= 0 || size > uint64(len(rest)-k) {
			return nil, fmt.Errorf("%w: a record's length", ErrState)
		}
		rest = rest[k:]
		list = append(list, Record{State: State(rest[:size:size]), Files: files[:n:n]})
		rest, files = rest[size:], files[n:]
	}
	if len(files) > 0 {
		return nil, fmt.Errorf("%w: %d descriptors without a record", ErrState, len(files))
	}
	return list, nil
}
