package tune

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// A Shape is how a link is divided among the classes of messages (admission.marks): each has a
// share of the rate that is its own, and what others leave of theirs, orders first.
type Shape struct {
	// Rate is the link's in bits per second, 1 Mbit to 400 Gbit: a little less than the slowest
	// link on the way, so that packets queue here and not there.
	Rate int64
	// DSCP is that of each class, 1 to 63, without those that share the queue of unmarked packets.
	DSCP map[string]int
}

// A Link is a device that is to be shaped.
type Link struct {
	Device string
	Shape
}

// A shapeClass is a class of HTB; rates are in bytes per second.
type shapeClass struct {
	name       string // "": unmarked packets
	handle     uint32
	prio       uint32
	rate, ceil uint64
}

const (
	rootClass     = ourHandle | 1
	unmarkedClass = ourHandle | 0x40
	quantum       = 3028 // bytes that a class sends before the next of its priority: two packets
)

// shares are in percent of the rate. Within its share a class goes before those that are above theirs,
// however important: the share of what must not wait is large, that of what is sent again or replaced
// soon is small. What is left goes by prio, the lowest first: orders before control messages, whose share
// is enough for what operation needs.
var shares = []struct {
	name    string
	minor   uint32
	prio    uint32
	percent uint64
}{{"control", 0x10, 1, 5}, {"order", 0x20, 0, 55}, {"account", 0x30, 2, 15}, {"", 0x40, 3, 15}, {"market", 0x50, 4, 7}, {"replay", 0x60, 5, 3}}

// classes are those of s that have a queue of their own.
func (s *Shape) classes() (list []shapeClass) {
	all := uint64(s.Rate) / 8
	for _, c := range shares {
		if _, ok := s.DSCP[c.name]; ok || c.name == "" {
			list = append(list, shapeClass{name: c.name, handle: ourHandle | c.minor, prio: c.prio, rate: all * c.percent / 100, ceil: all})
		}
	}
	return list
}

func className(handle uint32) string {
	for _, c := range shares {
		if ourHandle|c.minor == handle {
			return c.name
		}
	}
	return ""
}

// burst is what may leave at once at a rate in bytes per second: a quarter of a millisecond's, which is
// more than the kernel's timers are late, and a packet. A link has none: what leaves at once here waits there.
func burst(rate uint64) uint64 { return rate/4000 + 1600 }

// splits reports whether large packets are split before they are queued. The kernel hands a stream's
// bytes over in packets of up to 64 KiB (GSO), and one of them occupies a slow link for so long
// that an order waits for it. Up to 1 Gbit/s, where that is half a millisecond, each class has a
// TBF that never waits, whose burst is less than such a packet: TBF splits what is larger (sch_tbf.c,
// tbf_segment). sch_cake does the same up to the same rate.
func (s *Shape) splits() bool { return s.Rate <= 1e9 }

// splitRate is that of the TBF in bytes per second: more than any link's.
const splitRate = 400e9 / 8

// splitBurst is the largest packet that stays whole at a rate in bytes per second: what a quarter of a
// millisecond sends, but two full packets of Ethernet, and never less than one of the device.
func splitBurst(rate uint64, mtu int) uint32 {
	return max(uint32(min(max(rate/4000, 2*1514), 9100)), uint32(mtu)+64)
}

// mtuOf is a device's; of one that is not here, the largest usual one.
func mtuOf(dev string) int {
	if i, err := net.InterfaceByName(dev); err == nil {
		return min(i.MTU, 1<<16)
	}
	return 9000
}

// splitLimit is how many bytes a class may have waiting at a rate: what half a second sends, and at least
// 256 KiB.
func splitLimit(rate uint64) uint64 { return min(max(rate/2, 256<<10), 1<<31) }

// String is the text that parseShape reads.
func (s *Shape) String() string {
	text := fmt.Sprintf("htb %dbit", s.Rate)
	for _, c := range shares {
		if v, ok := s.DSCP[c.name]; ok {
			text += fmt.Sprintf(" %s=%d", c.name, v)
		}
	}
	return text
}

func parseShape(text string) (*Shape, error) {
	f := strings.Fields(text)
	if len(f) < 3 || f[0] != "htb" {
		return nil, fmt.Errorf("invalid shape %q: want htb, a rate and classes with their DSCP", text)
	}
	s := &Shape{}
	var err error
	if s.Rate, err = parseRate(f[1]); err != nil {
		return nil, err
	}
	if s.DSCP, err = ParseDSCP(f[2:]); err != nil {
		return nil, err
	}
	return s, s.validate()
}

// ParseDSCP reads a list of CLASS=DSCP. The documentation gives orders EF (46), what users wait
// for AF21 (18), bulk AF11 (10) and CS1 (8), and operation CS2 (16; RFC 4594).
func ParseDSCP(list []string) (map[string]int, error) {
	dscp := map[string]int{}
	for _, part := range list {
		name, v, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(v)
		if err != nil {
			return nil, fmt.Errorf("invalid %q: want CLASS=DSCP, such as order=46", part)
		}
		dscp[name] = n
	}
	return dscp, nil
}

func (s *Shape) validate() error {
	if len(s.DSCP) == 0 {
		return fmt.Errorf("no class has a DSCP: want some of %s", classList())
	}
	used := map[int]string{}
	for _, c := range shares {
		v, ok := s.DSCP[c.name]
		if !ok {
			continue
		}
		if v < 1 || v > 63 {
			return fmt.Errorf("invalid DSCP %d of class %s: want 1 to 63", v, c.name)
		}
		if other := used[v]; other != "" {
			return fmt.Errorf("classes %s and %s both have DSCP %d: want one each", other, c.name, v)
		}
		used[v] = c.name
	}
	if len(used) != len(s.DSCP) {
		return fmt.Errorf("unknown class among %v: want some of %s", s.DSCP, classList())
	}
	return nil
}

func classList() string {
	var names []string
	for _, c := range shares {
		if c.name != "" {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, ", ")
}

// ParseLink reads DEVICE=RATE, such as eth0=950mbit, and gives the classes their DSCP.
func ParseLink(text string, dscp map[string]int) (Link, error) {
	dev, rate, ok := strings.Cut(text, "=")
	if !ok || dev == "" || strings.ContainsAny(dev, "/ \t\n") || len(dev) > 15 {
		return Link{}, fmt.Errorf("invalid link %q: want DEVICE=RATE, such as eth0=950mbit", text)
	}
	l := Link{Device: dev, Shape: Shape{DSCP: dscp}}
	var err error
	if l.Rate, err = parseRate(rate); err != nil {
		return Link{}, err
	}
	return l, l.validate()
}

// rateUnits are those of tc(8), the longest names first.
var rateUnits = []struct {
	name string
	bits int64
}{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

func parseRate(text string) (int64, error) {
	for _, u := range rateUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 1 || n > 400e9/u.bits || n*u.bits < 1e6 {
			break
		}
		return n * u.bits / 8 * 8, nil
	}
	return 0, fmt.Errorf("invalid rate %q: want 1mbit to 400gbit", text)
}

// Batch is the shape of a device for `tc -batch`.
func (l *Link) Batch() string {
	var b strings.Builder
	major := ourHandle >> 16
	fmt.Fprintf(&b, "qdisc add dev %s root handle %x: htb default %x r2q 10\n", l.Device, major, unmarkedClass&0xffff)
	class := func(c shapeClass, parent string) {
		fmt.Fprintf(&b, "class add dev %s parent %s classid %x:%x htb rate %dbit ceil %dbit burst %db cburst %[7]db prio %d quantum %d\n",
			l.Device, parent, major, c.handle&0xffff, c.rate*8, c.ceil*8, burst(c.ceil), c.prio, quantum)
	}
	all := uint64(l.Rate) / 8
	class(shapeClass{handle: rootClass, rate: all, ceil: all}, fmt.Sprintf("%x:", major))
	for _, c := range l.classes() {
		class(c, fmt.Sprintf("%x:1", major))
		if l.splits() {
			fmt.Fprintf(&b, "qdisc add dev %s parent %x:%x tbf rate %dbit burst %db limit %db\n",
				l.Device, major, c.handle&0xffff, uint64(splitRate)*8, splitBurst(all, mtuOf(l.Device)), splitLimit(c.ceil))
		}
	}
	for _, c := range l.classes() {
		if c.name == "" {
			continue
		}
		for _, i := range filterInfos {
			protocol := map[uint16]string{0x0800: "ip", 0x86dd: "ipv6"}[i.protocol]
			fmt.Fprintf(&b, "filter add dev %s parent %x: protocol %s prio %d u32 match u32 0x%08x 0x%08x at 0 flowid %x:%x\n",
				l.Device, major, protocol, i.prio, uint32(l.DSCP[c.name])<<i.shift, i.mask(), major, c.handle&0xffff)
		}
	}
	return b.String()
}
