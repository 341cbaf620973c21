package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Version is the protocol's: the frames, their order, and what the marked fields mean.
	// MinVersion is the oldest that this build speaks too.
	Version    = 7
	MinVersion = 2

	// environment names the variable that gives a process the descriptor of its end.
	environment = "WEIR_TAKEOVER"
	childFD     = 3
	// helloTime bounds the start of the other process until its first frame.
	helloTime = 20 * time.Second
)

// The fields of frames that are a State.
const (
	helloMin = iota + 1
	helloMax
	helloBuild
	helloPID
)

const (
	listenerNames = iota + 1 // of the sockets, each ended by a line feed
	listenersKept
	listenersConns // connections that are open
)

const (
	preparedOutside = iota + 1
	preparedURL
)

const readyRefused = 1 // numbers of connections, 4 bytes each

// VersionLogAhead is the first version in which most of a log can come before the pause.
const VersionLogAhead = 3

// VersionRevoked is the first version in which revocations come with the log.
const VersionRevoked = 4

// VersionKeysAhead is the first version in which a process has idempotency keys that the embedded server does not read when it
// opens its directory.
const VersionKeysAhead = 6

// VersionSocketsAhead is the first version in which sockets of connections can come before the pause.
const VersionSocketsAhead = 5

// VersionTunnels is the first version in which a connection can come with another one, of a tunnel.
const VersionTunnels = 6

// VersionFollowReady is the first version in which connections that follow after the commit are answered before their keys are
// forgotten: Frozen, Ready and Commit end each batch, as they do the first.
const VersionFollowReady = 7

const socketsLoop = 1 // the number of the loop that they are of, plus 1

const logOpened = 1 // Unix milliseconds, see SendOpened

// A Peer is the process at the other end.
type Peer struct {
	Build   string
	PID     int
	Version int // what both speak
}

// hello sends who this process is.
func (l *Link) hello(build string) error {
	var s State
	return l.Send(Hello, s.Uint(helloMin, MinVersion).Uint(helloMax, Version).String(helloBuild, build).Uint(helloPID, uint64(os.Getpid())))
}

// expect returns the next frame, which must be of type t; a refusal becomes an error.
func (l *Link) expect(t Type) (*Frame, error) {
	f, err := l.Receive()
	if err != nil {
		return nil, fmt.Errorf("takeover: waiting for %v: %w", t, noEOF(err))
	}
	switch f.Type {
	case t:
		return f, nil
	case Refused:
		f.Close()
		return nil, &RefusedError{string(f.Body)}
	}
	f.Close()
	return nil, fmt.Errorf("takeover: got %v, want %v", f.Type, t)
}

// A RefusedError is why the other process refuses.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// peer waits for the other process's hello.
func (l *Link) peer() (p Peer, err error) {
	f, err := l.expect(Hello)
	if err != nil {
		return p, err
	}
	defer f.Close()
	var lowest, highest, pid uint64
	err = State(f.Body).Into([]any{helloMin: &lowest, helloMax: &highest, helloBuild: &p.Build, helloPID: &pid})
	p.PID = int(pid)
	if err != nil {
		return p, err
	}
	if p.Version = int(min(highest, Version)); p.Version < MinVersion || uint64(p.Version) < lowest {
		return p, fmt.Errorf("takeover: this build speaks versions %d to %d and the other (%s) %d to %d: restart instead", MinVersion, Version, p.Build, lowest, highest)
	}
	return p, nil
}

// A Child is the new process, as the old one sees it. Its methods are for one goroutine,
// SendConns aside.
type Child struct {
	*Link
	Peer Peer

	cmd    *exec.Cmd
	exited chan struct{}

	conns   sync.Mutex // makes the numbers those of the order in which connections are sent
	sent    int
	sockets int // of Sockets
}

// SendConns sends n connections and returns the number of the first; the others follow. fds are the descriptors of
// those whose sockets were not sent before. Any goroutine.
func (c *Child) SendConns(n int, body []byte, fds []int) (first int, err error) {
	c.conns.Lock()
	defer c.conns.Unlock()
	first = c.sent
	c.sent += n
	return first, c.Send(Conns, body, fds...)
}

// SendSockets sends sockets of connections of a loop, whose states follow in the pause, and returns
// the number of the first, which is another count than that of SendConns. Any goroutine.
func (c *Child) SendSockets(loop int, fds []int) (first int, err error) {
	c.conns.Lock()
	defer c.conns.Unlock()
	first = c.sockets
	c.sockets += len(fds)
	return first, c.Send(Sockets, State{}.Uint(socketsLoop, uint64(loop)+1), fds...)
}

// SettleAhead waits until the new process has done what all that was sent to it before requires, so that nothing of it is
// left for the pause.
func (c *Child) SettleAhead() error {
	err := c.Send(Sockets, nil)
	if err != nil {
		return err
	}
	f, err := c.expect(Sockets)
	if err == nil {
		f.Close()
	}
	return err
}

// ReadSockets returns the loop of SendSockets.
func ReadSockets(s State) (loop int, err error) {
	var n uint64
	err = s.Into([]any{socketsLoop: &n})
	if err == nil && (n == 0 || n > 256) {
		err = fmt.Errorf("%w: sockets of loop %d", ErrState, n)
	}
	return int(n) - 1, err
}

// Start starts program with args and waits for its hello. environ is its environment; what
// is for this process alone is removed.
func Start(program string, args, environ []string, build string) (*Child, error) {
	l, other, err := Pair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{other} // descriptor 3
	cmd.Env = append(without(environ, environment, "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"), environment+"="+strconv.Itoa(childFD))
	if err := cmd.Start(); err != nil {
		l.Close()
		return nil, fmt.Errorf("start the new process: %w", err)
	}
	c := &Child{Link: l, cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		_ = cmd.Wait()
	}()
	_ = other.Close() // so that its end is seen
	l.SetDeadline(time.Now().Add(helloTime))
	defer l.SetDeadline(time.Time{})
	if err = l.hello(build); err == nil {
		c.Peer, err = l.peer()
	}
	if err != nil {
		c.Kill()
		return nil, err
	}
	return c, nil
}

// without returns the variables of environ but those named.
func without(environ []string, names ...string) (list []string) {
next:
	for _, v := range environ {
		for _, n := range names {
			if strings.HasPrefix(v, n+"=") {
				continue next
			}
		}
		list = append(list, v)
	}
	return list
}

// Kill ends the new process, and waits for that.
func (c *Child) Kill() {
	c.Close()
	_ = c.cmd.Process.Kill()
	<-c.exited
}

// Refuse sends the new process the reason why it is not needed, and ends it.
func (c *Child) Refuse(why error) {
	c.SetDeadline(time.Now().Add(time.Second))
	_ = c.Send(Refused, []byte(why.Error()))
	c.Kill()
}

// SendListeners sends the listening sockets by name. kept of them are also kept by a service
// manager; conns is about how many connections will follow.
func (c *Child) SendListeners(names []string, fds []int, kept, conns int) error {
	var s State
	s = s.String(listenerNames, strings.Join(names, "\n")).Uint(listenersKept, uint64(kept)).Uint(listenersConns, uint64(conns))
	return c.Send(Listeners, s, fds...)
}

// SendOpened sends since when this node alone writes the log in the directory.
func (c *Child) SendOpened(at time.Time) error {
	if at.IsZero() {
		return nil
	}
	return c.Send(Log, State{}.Uint(logOpened, uint64(at.UnixMilli())))
}

// ReadOpened reads what SendOpened sent.
func ReadOpened(s State) (at time.Time, err error) {
	err = s.Read(func(f Field) (bool, error) {
		if f.Tag != logOpened {
			return false, nil
		}
		at = time.UnixMilli(int64(f.Uint))
		return true, nil
	})
	return at, err
}

// AwaitPrepared waits until the new process is ready to take over. outside reports whether
// its log is outside both processes, and url where.
func (c *Child) AwaitPrepared(within time.Duration) (outside bool, url string, err error) {
	c.SetDeadline(time.Now().Add(within))
	defer c.SetDeadline(time.Time{})
	f, err := c.expect(Prepared)
	if err != nil {
		return false, "", err
	}
	defer f.Close()
	err = State(f.Body).Into([]any{preparedOutside: &outside, preparedURL: &url})
	return outside, url, err
}

// SettleFollowing ends a batch of connections that follow after the commit, and returns the numbers of those that the new
// process cannot take. It touches none of them before CommitFollowing.
func (c *Child) SettleFollowing() (refused map[int]bool, err error) {
	if err := c.Send(Frozen, nil); err != nil {
		return nil, err
	}
	return c.AwaitReady()
}

// CommitFollowing makes the batch the new process's, and returns when that has read so, which nothing answers. After an error
// it has not, or has ended. unread is AwaitRead's.
func (c *Child) CommitFollowing(end time.Time, unread func(fd int) int) error {
	if err := c.Send(Commit, nil); err != nil {
		return err
	}
	return c.AwaitRead(end, unread)
}

// AwaitRead waits until the new process has read all that was sent to it, at most until end: what is sent next does not wait for
// it. unread returns how many bytes that were sent to a Unix socket are not read.
func (c *Child) AwaitRead(end time.Time, unread func(fd int) int) error {
	for wait := 10 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		n, err := c.Unread(unread)
		switch {
		case err != nil:
			return err
		case n == 0:
			return c.Alive() // what is not read is gone with the other end
		case time.Now().After(end):
			return fmt.Errorf("takeover: the new process does not read what was sent to it: %w", os.ErrDeadlineExceeded)
		}
		time.Sleep(wait)
	}
}

// AwaitReady waits until the new process has understood all connections, and returns the
// numbers of those that it cannot take, in the order in which they were sent.
func (c *Child) AwaitReady() (refused map[int]bool, err error) {
	f, err := c.expect(Ready)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	refused = map[int]bool{}
	err = State(f.Body).Read(func(f Field) (bool, error) {
		if f.Tag != readyRefused {
			return false, nil
		}
		for b := f.Bytes; len(b) >= 4; b = b[4:] {
			refused[int(binary.BigEndian.Uint32(b))] = true
		}
		return true, nil
	})
	return refused, err
}

// AwaitServing waits for the new process to serve.
func (c *Child) AwaitServing() error {
	f, err := c.expect(Serving)
	if err == nil {
		f.Close()
	}
	return err
}

// A Parent is the old process, as the new one sees it.
type Parent struct {
	*Link
	Peer Peer
	// Sockets are its listening sockets. The caller closes them.
	Sockets []*os.File
	// Kept is how many of them a service manager keeps.
	Kept int
	// Conns is about how many connections it has.
	Conns int
}

// FromEnvironment returns the process that started this one to take over from it; nil: none
// did. It takes the variable out of the environment, and waits for the listening sockets.
func FromEnvironment(build string) (*Parent, error) {
	v := os.Getenv(environment)
	if v == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	_ = os.Unsetenv(environment)
	fd, err := strconv.Atoi(v)
	if err != nil || fd < childFD {
		return nil, fmt.Errorf("%s=%q in the environment is not a descriptor; it is set by weir upgrade alone", environment, v)
	}
	l, err := linkOf(os.NewFile(uintptr(fd), "takeover"))
	if err != nil {
		return nil, err
	}
	p := &Parent{Link: l}
	l.SetDeadline(time.Now().Add(helloTime))
	defer l.SetDeadline(time.Time{})
	if err = l.hello(build); err == nil {
		p.Peer, err = l.peer()
	}
	if err == nil {
		err = p.receiveListeners()
	}
	if err != nil {
		p.Refuse(err)
		return nil, err
	}
	return p, nil
}

func (p *Parent) receiveListeners() error {
	f, err := p.expect(Listeners)
	if err != nil {
		return err
	}
	var list string
	var kept, conns uint64
	err = State(f.Body).Into([]any{listenerNames: &list, listenersKept: &kept, listenersConns: &conns})
	p.Kept, p.Conns = int(kept), int(min(conns, 1<<24))
	var names []string
	if list != "" {
		names = strings.Split(list, "\n")
	}
	if err == nil && len(names) != len(f.Files) {
		err = fmt.Errorf("%w: %d listening sockets with %d names", ErrState, len(f.Files), len(names))
	}
	if err != nil {
		f.Close()
		return err
	}
	for i, fd := range f.Files {
		p.Sockets = append(p.Sockets, os.NewFile(uintptr(fd), names[i]))
	}
	return nil
}

// Refuse sends the old process the reason why this one cannot take over.
func (p *Parent) Refuse(why error) {
	p.SetDeadline(time.Now().Add(time.Second))
	_ = p.Send(Refused, []byte(why.Error()))
	p.Close()
}

// SendPrepared reports that everything is built. outside and url are AwaitPrepared's.
func (p *Parent) SendPrepared(outside bool, url string) error {
	var s State
	if outside {
		s = s.Uint(preparedOutside, 1)
	}
	return p.Send(Prepared, s.String(preparedURL, url))
}

// ReceiveLog calls piece with each piece of the log, of type Log, of revocations, of type Revoked, and of keys, of type Keys,
// until the last, and with sockets that come meanwhile, of type Sockets. piece must not keep the body; the descriptors are
// piece's.
func (p *Parent) ReceiveLog(piece func(t Type, body []byte, files []int) error) error {
	for {
		f, err := p.Receive()
		if err != nil {
			return fmt.Errorf("takeover: waiting for the log: %w", noEOF(err))
		}
		if f.Type != Sockets {
			f.Close()
		}
		switch f.Type {
		case Sockets:
			if len(f.Files) == 0 { // see SettleAhead
				if err := p.Send(Sockets, nil); err != nil {
					return err
				}
				continue
			}
			fallthrough
		case Log, Revoked, Keys:
			if err := piece(f.Type, f.Body, f.Files); err != nil {
				return err
			}
		case LogEnd:
			return nil
		case Refused:
			return &RefusedError{string(f.Body)}
		default:
			return fmt.Errorf("takeover: got %v, want the log", f.Type)
		}
	}
}

// ReceiveConns returns connections as they come, of type Conns; without any, Frozen ends a batch and Done all of them.
func (p *Parent) ReceiveConns() (t Type, list []Record, err error) {
	f, err := p.Receive()
	if err != nil {
		return 0, nil, fmt.Errorf("takeover: waiting for connections: %w", noEOF(err))
	}
	switch f.Type {
	case Conns:
		list, err = f.Records()
		return Conns, list, err
	case Frozen, Done:
		f.Close()
		return f.Type, nil, nil
	case Refused:
		f.Close()
		return 0, nil, &RefusedError{string(f.Body)}
	}
	f.Close()
	return 0, nil, fmt.Errorf("takeover: got %v, want connections", f.Type)
}

// SendReady reports that everything was understood, but for the connections of these numbers.
func (p *Parent) SendReady(refused []int) error {
	var list []byte
	for _, n := range refused {
		list = binary.BigEndian.AppendUint32(list, uint32(n))
	}
	var s State
	return p.Send(Ready, s.Bytes(readyRefused, list))
}

// AwaitCommit waits until this process is the server.
func (p *Parent) AwaitCommit() error {
	f, err := p.expect(Commit)
	if err == nil {
		f.Close()
	}
	return err
}

// ErrUnderWay reports that a takeover is under way already.
var ErrUnderWay = errors.New("an upgrade is under way already")
