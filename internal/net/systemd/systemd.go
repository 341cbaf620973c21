// Package systemd is a service's side of sd_listen_fds(3) and sd_notify(3): the sockets
// that the service manager passes at the start, the descriptors that it keeps while no
// process runs, and the state that it is notified of. Any supervisor that speaks these
// protocols will do.
package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
)

// A Service is the process as its service manager sees it. Nil, and one that no manager
// started, receive nothing and notify of nothing.
type Service struct {
	files    []*os.File
	notified bool // there is a manager to notify
	room     int  // descriptors that the manager keeps; -1: not known
	watchdog time.Duration
}

// FromEnvironment reads what the manager passed in the environment, and removes the
// sockets from there. It is called once per process: the files are its own from then on.
func FromEnvironment() (*Service, error) {
	s := &Service{files: activation.Files(true), notified: os.Getenv("NOTIFY_SOCKET") != "", room: -1}
	if v := os.Getenv("FDSTORE"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("FDSTORE=%q in the environment is not a number of descriptors", v)
		}
		s.room = n
	}
	var err error
	if s.watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		return nil, fmt.Errorf("WATCHDOG_USEC in the environment: %w", err)
	}
	return s, nil
}

// Files are the descriptors that were passed, each with the name that the manager has for
// it. The caller closes them.
func (s *Service) Files() []*os.File {
	if s == nil {
		return nil
	}
	return s.files
}

// Notified reports whether there is a manager to notify.
func (s *Service) Notified() bool { return s != nil && s.notified }

// Watchdog is the time within which the manager wants to be notified that the process is
// alive; 0 means that it does not watch.
func (s *Service) Watchdog() time.Duration {
	if s == nil {
		return 0
	}
	return s.watchdog
}

// Room is how many descriptors the manager keeps (FileDescriptorStoreMax). known is false
// before systemd 254, which does not pass it on: then they may be kept or not.
func (s *Service) Room() (n int, known bool) {
	if !s.Notified() {
		return 0, true
	}
	return s.room, s.room >= 0
}

// Ready notifies that the start, or a reload, has ended. status is for the operator.
func (s *Service) Ready(status string) error {
	return s.notify(daemon.SdNotifyReady, "STATUS="+status)
}

// Reloading notifies that a reload starts; Ready ends it.
func (s *Service) Reloading() error {
	return s.notify(daemon.SdNotifyReloading, strings.TrimSpace(daemon.SdNotifyMonotonicUsec()))
}

// Stopping notifies that the process ends by itself. status is for the operator.
func (s *Service) Stopping(status string) error {
	return s.notify(daemon.SdNotifyStopping, "STATUS="+status)
}

// MainPID notifies that another process is the service's main one from now on.
func (s *Service) MainPID(pid int) error { return s.notify("MAINPID=" + strconv.Itoa(pid)) }

// Alive notifies that the process works.
func (s *Service) Alive() error { return s.notify(daemon.SdNotifyWatchdog) }

// Forget has the manager close the descriptors that it keeps under name.
func (s *Service) Forget(name string) error { return s.notify("FDSTOREREMOVE=1", "FDNAME="+name) }

// Keep has the manager keep a duplicate of f for the next process, and pass it by name
// then. The manager does not answer: whether it had room is known at the next start.
func (s *Service) Keep(name string, f *os.File) error {
	if !s.Notified() {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer func() { _ = c.Close() }()
	// The manager need not watch whether a listening socket breaks.
	if err := sendFile(c, "FDSTORE=1\nFDNAME="+name+"\nFDPOLL=0", f); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return nil
}

// sendFile sends text with a duplicate of f. net sends no rights over a connected
// datagram socket.
func sendFile(c *net.UnixConn, text string, f *os.File) error {
	to, err := c.SyscallConn()
	if err != nil {
		return err
	}
	from, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = from.Control(func(fd uintptr) {
		err := to.Write(func(socket uintptr) bool {
			sent = syscall.Sendmsg(int(socket), []byte(text), syscall.UnixRights(int(fd)), nil, syscall.MSG_NOSIGNAL)
			return !errors.Is(sent, syscall.EAGAIN)
		})
		sent = errors.Join(sent, err)
	})
	return errors.Join(err, sent)
}

func (s *Service) notify(lines ...string) error {
	if !s.Notified() {
		return nil
	}
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
