package tune

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const testShape = "htb 8000000bit control=16 order=46 account=18 market=10 replay=8"

func testDSCP() map[string]int {
	return map[string]int{"control": 16, "order": 46, "account": 18, "market": 10, "replay": 8}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// tc runs it on lo.
func tc(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("tc", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("tc %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// sentBy is how many packets the classes of lo have sent, by minor number.
func sentBy(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, m := range regexp.MustCompile(`class htb 5765:(\w+) .*\n Sent \d+ bytes (\d+) pkt`).FindAllStringSubmatch(tc(t, "-s", "class", "show", "dev", "lo"), -1) {
		all[m[1]] = m[2]
	}
	return all
}

// TestClassQueuesSeparatePackets sends packets with each DSCP over IPv4 and IPv6 through queues
// that Save made, and through those that tc makes of the plan.
func TestClassQueuesSeparatePackets(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ip(t, "link", "set", "lo", "up")
	const target = QdiscTarget + "lo"
	q, fresh := ClassQueue{}, tc(t, "qdisc", "show")
	check := func(how string) {
		t.Helper()
		if got, err := q.Load(target); err != nil || got != testShape {
			t.Fatalf("%s: %q (%v), want %q", how, got, err, testShape)
		}
		for i, dscp := range []int{16, 46, 18, 0, 10, 8} {
			for range i + 1 {
				for _, network := range []string{"udp4", "udp6"} {
					sendMarked(t, network, dscp)
				}
			}
		}
		want := map[string]string{"10": "2", "20": "4", "30": "6", "40": "8", "50": "10", "60": "12"}
		got := sentBy(t)
		for class, n := range want {
			// Unmarked packets are those of others, too: ICMP answers that no port is open.
			if got[class] != n && class != "40" {
				t.Errorf("%s: class %s sent %s packets, want %s", how, class, got[class], n)
			}
		}
	}
	if err := q.Save(target, testShape); err != nil {
		t.Fatal(err)
	}
	check("netlink")
	if err := q.Save(target, ""); err != nil {
		t.Fatal(err)
	}
	if now := tc(t, "qdisc", "show"); now != fresh {
		t.Errorf("the queues are %q, and were %q", now, fresh)
	}
	l, err := ParseLink("lo=8mbit", testDSCP())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("tc", "-batch", "-")
	cmd.Stdin = strings.NewReader(l.Batch())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tc: %v: %s\n%s", err, out, l.Batch())
	}
	check("tc")

	// What is not whole is named, and replaced or removed.
	tc(t, "filter", "del", "dev", "lo", "parent", "5765:", "protocol", "ipv6", "prio", "2")
	if got, err := q.Load(target); err != nil || got != "htb, incomplete" {
		t.Errorf("%q %v", got, err)
	}
	if err := q.Save(target, testShape); err != nil {
		t.Fatal(err)
	}
	tc(t, "qdisc", "del", "dev", "lo", "parent", "5765:50")
	if got, err := q.Load(target); err != nil || got != "htb, incomplete" {
		t.Errorf("without what splits packets: %q %v", got, err)
	}
	if err := q.Save(target, ""); err != nil {
		t.Fatal(err)
	}

	// What something else made is left.
	tc(t, "qdisc", "add", "dev", "lo", "root", "handle", "7:", "tbf", "rate", "8mbit", "burst", "10kb", "latency", "50ms")
	if got, err := q.Load(target); err != nil || got != "tbf 7:" {
		t.Errorf("%q %v", got, err)
	}
	for _, value := range []string{testShape, ""} {
		if err := q.Save(target, value); err == nil || !strings.Contains(err.Error(), "tc qdisc del dev lo root") {
			t.Errorf("%q: %v", value, err)
		}
	}
	m := Local("/")
	m.Links = []Link{l}
	r, err := Run(m, Gateway, "qdisc.classes")
	if err != nil || r.Findings[0].State != Watch {
		t.Errorf("%+v %v", r, err)
	}
	j := OpenJournal(filepath.Join(t.TempDir(), "j"))
	if _, err := Apply(System{Queues: q}, j, []Step{{Target: target, Value: testShape}}); err == nil {
		t.Error("the queue of something else was replaced")
	}
	if _, err := Undo(System{Queues: q}, j, false); err != nil {
		t.Error(err)
	}
	if _, err := q.Load(QdiscTarget + "none"); err == nil || !strings.Contains(err.Error(), `"none"`) {
		t.Error(err)
	}
}

func sendMarked(t *testing.T, network string, dscp int) {
	t.Helper()
	to, level, option := "127.0.0.1:9", syscall.IPPROTO_IP, syscall.IP_TOS
	if network == "udp6" {
		to, level, option = "[::1]:9", syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS
	}
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if cerr := raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), level, option, dscp<<2) }); cerr != nil {
			return cerr
		}
		return err
	}}
	c, err := d.Dial(network, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestLinksAndTheirRates(t *testing.T) {
	f := func(link string, dscp map[string]int, want string) {
		t.Helper()
		l, err := ParseLink(link, dscp)
		got := fmt.Sprint(l.Device, " ", l.String())
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s %v: %s, want %s", link, dscp, got, want)
		}
		if err != nil {
			return
		}
		if s, err := parseShape(l.String()); err != nil || s.String() != l.String() {
			t.Errorf("%s is read as %v, %v", &l.Shape, s, err)
		}
	}
	orders := map[string]int{"order": 46}
	f("eth0=1gbit", orders, "eth0 htb 1000000000bit order=46")
	f("eth0=1000000bit", map[string]int{"order": 34, "replay": 1}, "eth0 htb 1000000bit order=34 replay=1")
	f("eth0", orders, `invalid link "eth0": want DEVICE=RATE, such as eth0=950mbit`)
	f("../x=1gbit", orders, `invalid link "../x=1gbit": want DEVICE=RATE, such as eth0=950mbit`)
	for _, rate := range []string{"", "1", "0mbit", "-1mbit", "999kbit", "401gbit", "99999999999gbit", "1.5mbit"} {
		f("eth0="+rate, orders, fmt.Sprintf("invalid rate %q: want 1mbit to 400gbit", rate))
	}
	f("eth0=1gbit", map[string]int{"order": 64}, "invalid DSCP 64 of class order: want 1 to 63")
	f("eth0=1gbit", map[string]int{"order": 8, "market": 8}, "classes order and market both have DSCP 8: want one each")
	f("eth0=1gbit", map[string]int{"orders": 8}, "unknown class among map[orders:8]: want some of control, order, account, market, replay")
	if _, err := ParseDSCP([]string{"order=x"}); err == nil || !strings.Contains(err.Error(), `"order=x"`) {
		t.Error(err)
	}
	f("eth0=1gbit", nil, "no class has a DSCP: want some of control, order, account, market, replay")
}

// TestLargePacketsAreSplit sends a stream, which the kernel makes packets of up to 64 KiB of, through
// the queues of a slow link and of a fast one.
func TestLargePacketsAreSplit(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ip(t, "link", "set", "lo", "up")
	largest := func(rate string) int {
		t.Helper()
		l, err := ParseLink("lo="+rate, testDSCP())
		if err != nil {
			t.Fatal(err)
		}
		if err := (ClassQueue{}).Save(QdiscTarget+"lo", l.String()); err != nil {
			t.Fatal(err)
		}
		seen := watchPackets(t)
		stream(t, 4<<20)
		return seen()
	}
	ip(t, "link", "set", "lo", "mtu", "1500")
	if n := largest("90mbit"); n == 0 || n > 3028 {
		t.Errorf("at 90 Mbit/s %d bytes leave at once", n)
	}
	if n := largest("400mbit"); n == 0 || n > 9100 {
		t.Errorf("at 400 Mbit/s %d bytes leave at once", n)
	}
	ip(t, "link", "set", "lo", "mtu", "9000") // a packet must never be more than the burst: TBF drops it then
	if n := largest("90mbit"); n < 8000 || n > 9000 {
		t.Errorf("with jumbo frames %d bytes leave at once", n)
	}
	if n := largest("40gbit"); n <= 9100 {
		t.Errorf("at 40 Gbit/s at most %d bytes leave at once: the test has no large packets", n)
	}
}

// watchPackets notes the packets that leave lo until the function that it returns is called, which
// returns the size of the largest.
func watchPackets(t *testing.T) (largest func() int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0x0008) // ETH_P_IP
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "packets")
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan int)
	go func() {
		most, b := 0, make([]byte, 1)
		_ = raw.Read(func(fd uintptr) bool { // it fails when f is closed, which is its end
			for {
				n, _, err := syscall.Recvfrom(int(fd), b, syscall.MSG_TRUNC)
				if err != nil {
					return false
				}
				most = max(most, n)
			}
		})
		result <- most
	}()
	return func() int {
		_ = f.Close()
		return <-result
	}
}

// stream sends n bytes over a connection of lo.
func stream(t *testing.T, n int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_, err = c.Write(make([]byte, n))
			_ = c.Close()
		}
		sent <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.Copy(io.Discard, c); err != nil || got != n {
		t.Fatalf("%d bytes, %v", got, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}
