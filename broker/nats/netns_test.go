package nats

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// A spaces is a network of three servers, each in a network namespace of its own. Its
// clients reach a server over one link and the other servers over another, which a
// partition takes away: every packet is dropped, and no connection is closed.
type spaces struct {
	id int
}

func (s *spaces) namespace(i int) string { return fmt.Sprintf("weir-fz-%d-%d", s.id, i) }
func (s *spaces) bridge() string         { return fmt.Sprintf("weirfz%db", s.id) }
func (s *spaces) port(i int) string      { return fmt.Sprintf("weirfz%dp%d", s.id, i) }
func (s *spaces) link(i int) string      { return fmt.Sprintf("weirfz%dc%d", s.id, i) }

// maxSpaces bounds the networks of one machine.
const maxSpaces = 60

// newSpaces makes one, which ends with the test; nil where that is not possible, because
// the test is not run by root, or iproute2 is missing.
func newSpaces(t *testing.T, servers int) *spaces {
	t.Helper()
	for id := range maxSpaces {
		s := &spaces{id: id}
		if s.ip("netns add "+s.namespace(0)) != nil {
			continue // another test has it
		}
		t.Cleanup(func() { s.remove(servers) })
		var lines []string
		for i := 1; i < servers; i++ {
			lines = append(lines, "netns add "+s.namespace(i))
		}
		lines = append(lines, "link add "+s.bridge()+" type bridge", "link set "+s.bridge()+" up")
		for i := range servers {
			lines = append(lines,
				fmt.Sprintf("link add %s type veth peer name clients netns %s", s.link(i), s.namespace(i)),
				fmt.Sprintf("link add %s type veth peer name servers netns %s", s.port(i), s.namespace(i)),
				fmt.Sprintf("link set %s master %s", s.port(i), s.bridge()),
				fmt.Sprintf("addr add 10.213.%d.1/30 dev %s", 4*id+i, s.link(i)),
				fmt.Sprintf("link set %s up", s.link(i)), fmt.Sprintf("link set %s up", s.port(i)))
		}
		if err := s.ip(lines...); err != nil {
			t.Log("no network namespaces:", err)
			return nil
		}
		for i := range servers {
			inside := []string{
				"link set lo up", "link set clients up", "link set servers up",
				fmt.Sprintf("addr add %s/30 dev clients", s.clientHost(i)), fmt.Sprintf("addr add %s/24 dev servers", s.serverHost(i)),
			}
			for _, line := range inside {
				if err := s.ip("-n " + s.namespace(i) + " " + line); err != nil {
					t.Log("no network namespaces:", err)
					return nil
				}
			}
		}
		return s
	}
	t.Log("no network namespaces: not root, no iproute2, or all names are taken")
	return nil
}

// clientHost and serverHost are where a server is for its clients and for other servers.
func (s *spaces) clientHost(i int) string { return fmt.Sprintf("10.213.%d.2", 4*s.id+i) }
func (s *spaces) serverHost(i int) string { return fmt.Sprintf("10.214.%d.%d", s.id, i+1) }

// cut takes server i off the bridge, or puts it back.
func (s *spaces) cut(i int, cut bool) error {
	if cut {
		return s.ip(fmt.Sprintf("link set %s nomaster", s.port(i)))
	}
	return s.ip(fmt.Sprintf("link set %s master %s", s.port(i), s.bridge()))
}

// remove undoes newSpaces. What was not made is no error.
func (s *spaces) remove(servers int) {
	for i := range servers {
		_ = s.ip("link del " + s.link(i)) // at once; with the namespace they go some time later
		_ = s.ip("link del " + s.port(i))
	}
	_ = s.ip("link del " + s.bridge())
	for i := range servers { // the first one last, which reserves the names
		_ = s.ip("netns del " + s.namespace(servers-1-i))
	}
}

// ip runs iproute2 with each of lines, until one fails.
func (s *spaces) ip(lines ...string) error {
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}
