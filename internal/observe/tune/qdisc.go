package tune

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
)

// QdiscTarget before a device's name is the target of a Step that shapes the device by class. Its
// value is a [Shape]'s text; empty is the queue that the kernel gives a device by itself.
const QdiscTarget = "qdisc:"

// A ClassQueue is the root qdisc of devices (tc(8)), in the network namespace of the process: HTB with a
// class for each class of messages, by their DSCP. It replaces nothing but the kernel's
// own queue. The zero value works; Save needs CAP_NET_ADMIN.
type ClassQueue struct{}

var _ Store = ClassQueue{}

// ourHandle is the major number of the qdisc that Save makes, "We": another one belongs to others.
const ourHandle uint32 = 0x5765 << 16

// Messages and attributes of linux/rtnetlink.h and linux/pkt_sched.h.
const (
	newQdisc, delQdisc, getQdisc = 36, 37, 38
	newClass, getClass           = 40, 42
	newFilter, getFilter         = 44, 46

	tcHead              = 20 // struct tcmsg
	tcKind, tcOptions   = 1, 2
	tcRoot              = 0xffffffff
	htbParms, htbInit   = 1, 2
	htbRate64, htbCeil  = 6, 7
	htbParmsSize        = 44 // struct tc_htb_opt
	tbfParms, tbfRate64 = 1, 4
	tbfBurst            = 6
	tbfParmsSize        = 36 // struct tc_tbf_qopt
	u32Class, u32Select = 1, 5
	u32Terminal         = 1
	u32SelectSize       = 16 // struct tc_u32_sel, before its keys
	linkEthernet        = 1  // TC_LINKLAYER_ETHERNET
)

// Load returns the text of the device's Shape, "" for the kernel's own queue, and otherwise the
// kind and handle of a qdisc that something else made.
func (ClassQueue) Load(target string) (string, error) {
	q, err := openQueue(target)
	if err != nil {
		return "", err
	}
	defer q.close()
	return q.load()
}

// Save shapes the device as the text of a Shape says, or gives it the kernel's own queue back.
func (ClassQueue) Save(target, value string) error {
	q, err := openQueue(target)
	if err != nil {
		return err
	}
	defer q.close()
	return q.save(value)
}

// queue is a device's root qdisc.
type queue struct {
	dev   string
	index int32
	conn  *netlink.Conn
}

func openQueue(target string) (*queue, error) {
	dev, ok := strings.CutPrefix(target, QdiscTarget)
	if !ok {
		return nil, fmt.Errorf("%s is not a device's queue: %w", target, ErrUnsupported)
	}
	i, err := net.InterfaceByName(dev)
	if err != nil {
		return nil, fmt.Errorf("no network device is called %q: %w", dev, fs.ErrNotExist)
	}
	conn, err := netlink.Dial(syscall.AF_UNSPEC, nil) // NETLINK_ROUTE is 0, too
	if err != nil {
		return nil, fmt.Errorf("%s: rtnetlink: %w", dev, err)
	}
	return &queue{dev: dev, index: int32(i.Index), conn: conn}, nil
}

func (q *queue) close() { _ = q.conn.Close() } // everything was answered by then

// A tcMessage is a struct tcmsg and its attributes.
type tcMessage struct {
	handle, parent, info uint32
	attributes           []byte
}

func (q *queue) send(kind netlink.HeaderType, flags netlink.HeaderFlags, m tcMessage) ([]netlink.Message, error) {
	b := make([]byte, tcHead, tcHead+len(m.attributes))
	binary.NativeEndian.PutUint32(b[4:], uint32(q.index))
	binary.NativeEndian.PutUint32(b[8:], m.handle)
	binary.NativeEndian.PutUint32(b[12:], m.parent)
	binary.NativeEndian.PutUint32(b[16:], m.info)
	replies, err := q.conn.Execute(netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | flags}, Data: append(b, m.attributes...)})
	if err != nil {
		return nil, fmt.Errorf("%s: rtnetlink: %w", q.dev, err)
	}
	return replies, nil
}

// dump calls each with what the device has of a kind of object.
func (q *queue) dump(kind netlink.HeaderType, parent uint32, each func(m tcMessage) error) error {
	replies, err := q.send(kind, netlink.Dump, tcMessage{parent: parent})
	if err != nil {
		return err
	}
	for _, r := range replies {
		if len(r.Data) < tcHead || int32(binary.NativeEndian.Uint32(r.Data[4:])) != q.index {
			continue // qdiscs of all devices are dumped
		}
		m := tcMessage{
			handle: binary.NativeEndian.Uint32(r.Data[8:]), parent: binary.NativeEndian.Uint32(r.Data[12:]),
			info: binary.NativeEndian.Uint32(r.Data[16:]), attributes: r.Data[tcHead:],
		}
		if err := each(m); err != nil {
			return fmt.Errorf("%s: rtnetlink: %w", q.dev, err)
		}
	}
	return nil
}

// root returns the kind and handle of the root qdisc; "" for the kernel's own, which have no handle.
func (q *queue) root() (kind string, handle uint32, err error) {
	err = q.dump(getQdisc, 0, func(m tcMessage) error {
		if m.parent != tcRoot || m.handle == 0 {
			return nil
		}
		handle = m.handle
		return m.decode(func(ad *netlink.AttributeDecoder) {
			if ad.Type() == tcKind {
				kind = ad.String()
			}
		})
	})
	return kind, handle, err
}

func (m tcMessage) decode(each func(ad *netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(m.attributes)
	if err != nil {
		return err
	}
	for ad.Next() {
		each(ad)
	}
	return ad.Err()
}

func (q *queue) load() (string, error) {
	kind, handle, err := q.root()
	switch {
	case err != nil:
		return "", err
	case kind == "":
		return "", nil
	case kind != "htb" || handle != ourHandle:
		return fmt.Sprintf("%s %x:", kind, handle>>16), nil
	}
	s, err := q.shape()
	if err != nil {
		return "", err
	}
	if s == nil {
		return "htb, incomplete", nil
	}
	return s.String(), nil
}

// shape reads back what save made; nil if it is not that, because it was interrupted or changed.
func (q *queue) shape() (*Shape, error) {
	rates := map[uint32]uint64{}
	err := q.dump(getClass, 0, func(m tcMessage) error {
		return m.decode(func(ad *netlink.AttributeDecoder) {
			if ad.Type() == tcOptions {
				ad.Nested(func(ad *netlink.AttributeDecoder) error {
					for ad.Next() {
						switch b := ad.Bytes(); {
						case ad.Type() == htbParms && len(b) >= htbParmsSize:
							rates[m.handle] = max(rates[m.handle], uint64(binary.NativeEndian.Uint32(b[8:])))
						case ad.Type() == htbRate64 && len(b) == 8:
							rates[m.handle] = binary.NativeEndian.Uint64(b)
						}
					}
					return nil
				})
			}
		})
	})
	if err != nil {
		return nil, err
	}
	s := &Shape{Rate: int64(rates[rootClass]) * 8, DSCP: map[string]int{}}
	found := map[string]int{}
	for _, info := range filterInfos {
		err := q.dump(getFilter, ourHandle, func(m tcMessage) error { return readFilter(m, info, s.DSCP, found) })
		if err != nil {
			return nil, err
		}
	}
	want := s.classes()
	for _, c := range want {
		if rates[c.handle] != c.rate {
			return nil, nil
		}
	}
	for name := range s.DSCP {
		if found[name] != len(filterInfos) {
			return nil, nil
		}
	}
	if len(rates) != len(want)+1 || len(s.DSCP) == 0 {
		return nil, nil
	}
	whole, err := q.split(s)
	if err != nil || !whole {
		return nil, err
	}
	return s, nil
}

// split reports whether the classes of s have a TBF where they should, and only there.
func (q *queue) split(s *Shape) (bool, error) {
	kinds := map[uint32]string{}
	err := q.dump(getQdisc, 0, func(m tcMessage) error {
		return m.decode(func(ad *netlink.AttributeDecoder) {
			if ad.Type() == tcKind {
				kinds[m.parent] = ad.String()
			}
		})
	})
	for _, c := range s.classes() {
		if (kinds[c.handle] == "tbf") != s.splits() {
			return false, err
		}
	}
	return true, err
}

func (q *queue) save(value string) error {
	kind, handle, err := q.root()
	switch {
	case err != nil:
		return err
	case kind != "" && handle != ourHandle:
		return fmt.Errorf("%s has a queue of its own, %s %x: — remove it first: tc qdisc del dev %s root", q.dev, kind, handle>>16, q.dev)
	case kind != "":
		if _, err := q.send(delQdisc, netlink.Acknowledge, tcMessage{handle: handle, parent: tcRoot}); err != nil {
			return err
		}
	}
	if value == "" {
		return nil
	}
	s, err := parseShape(value)
	if err != nil {
		return err
	}
	return q.make(s)
}

// make adds the qdisc, its classes and their filters.
func (q *queue) make(s *Shape) error {
	const add = netlink.Acknowledge | netlink.Create | netlink.Excl
	if _, err := q.send(newQdisc, add, tcMessage{handle: ourHandle, parent: tcRoot, attributes: htbQdisc()}); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("this kernel has no HTB (sch_htb): %w", err)
		}
		return err
	}
	root := shapeClass{handle: rootClass, rate: uint64(s.Rate) / 8, ceil: uint64(s.Rate) / 8}
	if _, err := q.send(newClass, add, tcMessage{handle: rootClass, parent: ourHandle, attributes: root.attributes()}); err != nil {
		return err
	}
	for _, c := range s.classes() {
		if _, err := q.send(newClass, add, tcMessage{handle: c.handle, parent: rootClass, attributes: c.attributes()}); err != nil {
			return err
		}
		if s.splits() {
			if _, err := q.send(newQdisc, add, tcMessage{parent: c.handle, attributes: c.tbf(q.dev)}); err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("this kernel has no TBF (sch_tbf): %w", err)
				}
				return err
			}
		}
		if c.name == "" {
			continue
		}
		for _, info := range filterInfos {
			m := tcMessage{parent: ourHandle, info: info.info(), attributes: u32Filter(c.handle, info.mask(), uint32(s.DSCP[c.name])<<info.shift)}
			if _, err := q.send(newFilter, add, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// htbQdisc are the attributes of the root: what no filter knows goes to the class of unmarked packets.
func htbQdisc() []byte {
	init := make([]byte, 20) // struct tc_htb_glob
	binary.NativeEndian.PutUint32(init, 3)
	binary.NativeEndian.PutUint32(init[4:], 10)
	binary.NativeEndian.PutUint32(init[8:], unmarkedClass&0xffff)
	return tcAttributes("htb", func(ae *netlink.AttributeEncoder) { ae.Bytes(htbInit, init) })
}

func tcAttributes(kind string, options func(ae *netlink.AttributeEncoder)) []byte {
	ae := netlink.NewAttributeEncoder()
	ae.String(tcKind, kind)
	ae.Nested(tcOptions, func(ae *netlink.AttributeEncoder) error {
		options(ae)
		return nil
	})
	b, err := ae.Encode()
	if err != nil {
		panic("tune: attributes of a few bytes: " + err.Error())
	}
	return b
}

// attributes are those of an HTB class.
func (c shapeClass) attributes() []byte {
	b := make([]byte, htbParmsSize)
	for i, rate := range []uint64{c.rate, c.ceil} { // struct tc_ratespec
		b[12*i+1] = linkEthernet
		binary.NativeEndian.PutUint32(b[12*i+8:], uint32(min(rate, 1<<32-1)))
		// In units of 64 ns: how long the burst takes at that rate.
		binary.NativeEndian.PutUint32(b[24+4*i:], uint32(burst(c.ceil)*15625000/rate))
	}
	binary.NativeEndian.PutUint32(b[32:], quantum)
	binary.NativeEndian.PutUint32(b[40:], c.prio)
	return tcAttributes("htb", func(ae *netlink.AttributeEncoder) {
		ae.Bytes(htbParms, b)
		ae.Uint64(htbRate64, c.rate)
		ae.Uint64(htbCeil, c.ceil)
	})
}

// tbf are the attributes of a qdisc that splits large packets of the class and never waits.
func (c shapeClass) tbf(dev string) []byte {
	b := make([]byte, tbfParmsSize)
	b[1] = linkEthernet // of the struct tc_ratespec
	binary.NativeEndian.PutUint32(b[8:], 1<<32-1)
	binary.NativeEndian.PutUint32(b[24:], uint32(splitLimit(c.ceil)))
	return tcAttributes("tbf", func(ae *netlink.AttributeEncoder) {
		ae.Bytes(tbfParms, b)
		ae.Uint64(tbfRate64, splitRate)
		ae.Uint32(tbfBurst, splitBurst(c.ceil, mtuOf(dev)))
	})
}

// A filterInfo reports where packets of a protocol have their DSCP: how far it is shifted in the
// first word of the header.
type filterInfo struct {
	protocol uint16
	prio     uint32
	shift    int
}

var filterInfos = []filterInfo{{0x0800, 1, 18}, {0x86dd, 2, 22}} // ETH_P_IP, ETH_P_IPV6

func (i filterInfo) info() uint32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], i.protocol)
	return i.prio<<16 | uint32(binary.NativeEndian.Uint16(b[:]))
}

func (i filterInfo) mask() uint32 { return 63 << i.shift }

// u32Filter sends packets of which the first word of the header has value under mask to a class.
func u32Filter(class, mask, value uint32) []byte {
	sel := make([]byte, u32SelectSize+16)
	sel[0], sel[2] = u32Terminal, 1
	binary.BigEndian.PutUint32(sel[u32SelectSize:], mask)
	binary.BigEndian.PutUint32(sel[u32SelectSize+4:], value)
	return tcAttributes("u32", func(ae *netlink.AttributeEncoder) {
		ae.Uint32(u32Class, class)
		ae.Bytes(u32Select, sel)
	})
}

// readFilter notes the DSCP of the class that a filter of u32Filter's form has, and counts it.
func readFilter(m tcMessage, info filterInfo, dscp map[string]int, found map[string]int) error {
	if m.info != info.info() {
		return nil
	}
	return m.decode(func(ad *netlink.AttributeDecoder) {
		if ad.Type() != tcOptions {
			return
		}
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			name, v := "", -1
			for ad.Next() {
				switch b := ad.Bytes(); {
				case ad.Type() == u32Class && len(b) == 4:
					name = className(binary.NativeEndian.Uint32(b))
				case ad.Type() == u32Select && len(b) >= u32SelectSize+16:
					v = int(binary.BigEndian.Uint32(b[u32SelectSize+4:]) >> info.shift)
				}
			}
			if name == "" || v < 0 {
				return nil
			}
			if old, ok := dscp[name]; !ok || old == v { // else one of IPv4's and IPv6's is missing
				dscp[name] = v
				found[name]++
			}
			return nil
		})
	})
}
