package tune

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// TestNotrackLeavesConnectionsUntracked counts the entries of connections to a server, in
// a network namespace where a rule has connections tracked.
func TestNotrackLeavesConnectionsUntracked(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	trackAll(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if n := entriesAfter(t, l, 5); n < 5 {
		t.Fatalf("%d connections are tracked without the rule, want 5: the test proves nothing", n)
	}
	m := Local("/")
	m.Listen = []int{port}
	r, err := Run(m, Gateway, "conntrack.notrack")
	if err != nil {
		t.Fatal(err)
	}
	f := r.Findings[0]
	if f.State != Change || len(f.Steps) != 1 {
		t.Fatalf("%+v", f)
	}
	before := count(t)
	for _, step := range f.Steps {
		if err := (NotrackRule{}).Save(step.Target, step.Value); err != nil {
			t.Fatal(err)
		}
	}
	if n := entriesAfter(t, l, 5); n > before {
		t.Errorf("%d entries with the rule, %d before", n, before)
	}
	if r, err = Run(m, Gateway, "conntrack.notrack"); err != nil || r.Findings[0].State != OK {
		t.Errorf("with the rule: %+v %v", r.Findings[0], err)
	}
	// What nft makes of the text is the same rule.
	if _, err := exec.LookPath("nft"); err == nil {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(NotrackText([]int{port, 9443}))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
		want := portList([]int{port, 9443})
		if got, err := (NotrackRule{}).Load(NotrackTarget); err != nil || got != want {
			t.Errorf("nft made a rule for %q (%v), want %s", got, err, want)
		}
	}
	if err := (NotrackRule{}).Save(NotrackTarget, ""); err != nil {
		t.Fatal(err)
	}
	if err := (NotrackRule{}).Save(NotrackTarget, ""); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

// trackAll adds a rule that looks at the state of connections, as a firewall does: that
// loads conntrack in the namespace.
func trackAll(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "firewall", Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Ct{Register: 1, Key: expr.CtKeySTATE}, &expr.Counter{}}})
	if err := c.Flush(); err != nil {
		t.Skipf("this kernel tracks no connections: %v", err)
	}
}

// entriesAfter makes n connections and returns how many entries there are while they are open.
func entriesAfter(t *testing.T, l net.Listener, n int) int {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	return count(t)
}

func count(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		t.Skipf("this kernel tracks no connections: %v", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPortsOfTheRule(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		ports, err := parsePorts(text)
		got := portList(ports)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %q (%v), want %q", text, got, err, want)
		}
	}
	f("", "")
	f("8443,8000,8000", "8000,8443")
	f("0", "error")
	f("65536", "error")
	f("http", "error")
	if text := NotrackText([]int{8000}); strings.Count(text, "8000 notrack") != 4 || !strings.Contains(text, fmt.Sprintf("delete table inet %s", notrackTable)) {
		t.Error(text)
	}
}
