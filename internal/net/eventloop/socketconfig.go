package eventloop

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// SocketConfig is what the kernel is requested every connection of a listener.
// It is set on the listening socket, and accepted ones inherit it for nothing.
// /api/info shows what the kernel made of it. The zero value works.
type SocketConfig struct {
	// ReceiveBuffer bounds in bytes what the kernel holds of unread input (SO_RCVBUF).
	// It takes at most net.core.rmem_max. 0 leaves it to the kernel, which fits the
	// buffer to each connection as it goes; setting it switches that off.
	ReceiveBuffer int `json:"receive_buffer" unit:"bytes"`
	// SendBuffer bounds in bytes what the kernel holds of unacknowledged output
	// (SO_SNDBUF). It takes at most net.core.wmem_max. 0 leaves it to the kernel as
	// above; setting it switches that off.
	SendBuffer int `json:"send_buffer" unit:"bytes"`
	// KeepAlive has the kernel probe connections that are silent. Heartbeats and
	// user_timeout find dead peers without it.
	KeepAlive KeepAlive `json:"keep_alive"`
	// NoDelay sends small writes at once (TCP_NODELAY); they are gathered here
	// already.
	NoDelay setting.Switch `json:"no_delay"`
	// DSCP marks outgoing packets for the network, 0 to 63 (RFC 2474; IP_TOS and
	// IPV6_TCLASS). 0 leaves them unmarked.
	DSCP int `json:"dscp"`
	// Priority is the packets' in this machine's queues (SO_PRIORITY), 1 to 6, with
	// CAP_NET_ADMIN more. It is not inherited: a system call per connection. 0 leaves
	// it to dscp. admission.marks sets both by class.
	Priority int `json:"priority"`
	// Congestion names the congestion control (TCP_CONGESTION). Empty leaves it to
	// net.ipv4.tcp_congestion_control.
	Congestion string `json:"congestion"`
	// BusyPoll has a loop poll the network card's queue that long before it sleeps,
	// to 10ms (SO_BUSY_POLL, and EPIOCSPARAMS for epoll or IORING_REGISTER_NAPI for
	// io_uring). It burns a processor per loop, and wants CAP_NET_ADMIN and Linux 6.9. 0
	// means never.
	BusyPoll hub.Duration `json:"busy_poll"`
	// PreferBusyPoll keeps the card's interrupts off while a loop polls
	// (SO_PREFER_BUSY_POLL); it goes with busy_poll. False leaves them on.
	PreferBusyPoll bool `json:"prefer_busy_poll"`
	// DeferAccept accepts a connection only when its first bytes are there, or about
	// that time has passed (TCP_DEFER_ACCEPT), whole seconds. 0 accepts at once.
	DeferAccept hub.Duration `json:"defer_accept"`
	// IncomingCPU gives a connection to the loop of the CPU that its packets arrive
	// on, and keeps each loop on its CPU. It needs one loop per CPU of the machine, and
	// pays where the network card spreads its queues over them. False spreads by hash.
	IncomingCPU bool `json:"incoming_cpu"`
}

// KeepAlive are the kernel's probes of silent connections.
type KeepAlive struct {
	// Idle is the silence before the first probe (SO_KEEPALIVE, TCP_KEEPIDLE), whole
	// seconds. 0 means no probes.
	Idle hub.Duration `json:"idle"`
	// Interval is the time between probes (TCP_KEEPINTVL), whole seconds; 0 leaves
	// it to net.ipv4.tcp_keepalive_intvl.
	Interval hub.Duration `json:"interval"`
	// Count is how many probes stay unanswered before the connection is closed
	// (TCP_KEEPCNT), 1 to 127. The kernel goes by user_timeout instead where that is
	// set, which it is here: a probe and that much silence. 0 leaves it to
	// net.ipv4.tcp_keepalive_probes.
	Count int `json:"count"`
}

// Validate returns all that is wrong with c, joined. What the kernel makes of it
// is found out when the listener is opened.
func (c SocketConfig) Validate() error { return errors.Join(c.problems("")...) }

func (c SocketConfig) problems(at string) (errs []error) {
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(at+format, a...)) }
	within := func(key string, v, lo, hi int) {
		if v != 0 && (v < lo || v > hi) {
			bad("%s: %d is not within %d..%d", key, v, lo, hi)
		}
	}
	seconds := func(key string, d hub.Duration, hi int) {
		if t := time.Duration(d); t != 0 && (t < time.Second || t > time.Duration(hi)*time.Second || t%time.Second != 0) {
			bad("%s: %v is not whole seconds within 1s..%v", key, t, time.Duration(hi)*time.Second)
		}
	}
	within("receive_buffer", c.ReceiveBuffer, 4<<10, 1<<30)
	within("send_buffer", c.SendBuffer, 4<<10, 1<<30)
	seconds("keep_alive: idle", c.KeepAlive.Idle, 32767)
	seconds("keep_alive: interval", c.KeepAlive.Interval, 32767)
	within("keep_alive: count", c.KeepAlive.Count, 1, 127)
	if c.KeepAlive.Idle == 0 && c.KeepAlive != (KeepAlive{}) {
		bad("keep_alive: idle is 0, so interval and count are for nothing")
	}
	within("dscp", c.DSCP, 0, 63)
	within("priority", c.Priority, 1, 1<<31-1)
	if !congestionName(c.Congestion) {
		bad("congestion: %.40q is not a name of at most 15 letters, digits, _ and -", c.Congestion)
	}
	if t := time.Duration(c.BusyPoll); t != 0 && (t < time.Microsecond || t > 10*time.Millisecond || t%time.Microsecond != 0) {
		bad("busy_poll: %v is not whole microseconds within 1µs..10ms", t)
	}
	if c.PreferBusyPoll && c.BusyPoll == 0 {
		bad("prefer_busy_poll: there is no busy_poll to prefer")
	}
	seconds("defer_accept", c.DeferAccept, 60)
	return errs
}

func congestionName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return false
		}
	}
	return len(s) <= 15
}

// A wanted option is one that is asked of the kernel.
type wanted struct {
	sys.Setting
	key  string // under eventloop, in the configuration
	unit string
	// usual options are set by default.
	usual bool
	// each: accepted sockets do not inherit it and it is set on every one.
	each bool
	// listening: it is about connections before they are accepted.
	listening bool
}

// wantedBy lists what cfg sets in the kernel, in the order in which it is set.
// cfg has its defaults.
func wantedBy(cfg Config) (list []wanted) {
	s, usual := cfg.Sockets, Config{}.WithDefaults()
	add := func(ask bool, key string, o sys.SocketOption, v int, unit string) *wanted {
		if !ask {
			return &wanted{}
		}
		list = append(list, wanted{Setting: sys.Setting{Option: o, Value: v}, key: key, unit: unit})
		return &list[len(list)-1]
	}
	set := func(key string, o sys.SocketOption, v int, unit string) *wanted { return add(v != 0, key, o, v, unit) }
	set("sockets.receive_buffer", sys.ReceiveBuffer, s.ReceiveBuffer, "bytes")
	set("sockets.send_buffer", sys.SendBuffer, s.SendBuffer, "bytes")
	add(true, "sockets.no_delay", sys.NoDelay, truth(s.NoDelay.On()), "").usual = s.NoDelay.On()
	set("user_timeout", sys.UserTimeout, milliseconds(cfg.UserTimeout), "ms").usual = cfg.UserTimeout == usual.UserTimeout
	set("notsent_lowat", sys.NotSentLowat, cfg.NotSentLowat, "bytes").usual = cfg.NotSentLowat == usual.NotSentLowat
	if k := s.KeepAlive; k.Idle != 0 {
		set("sockets.keep_alive", sys.KeepAlive, 1, "")
		set("sockets.keep_alive.idle", sys.KeepIdle, seconds(k.Idle), "s")
		set("sockets.keep_alive.interval", sys.KeepInterval, seconds(k.Interval), "s")
		set("sockets.keep_alive.count", sys.KeepCount, k.Count, "")
	}
	set("sockets.busy_poll", sys.BusyPoll, int(time.Duration(s.BusyPoll).Microseconds()), "us")
	set("sockets.prefer_busy_poll", sys.PreferBusyPoll, truth(s.PreferBusyPoll), "")
	// The lower two bits are ECN's. Setting IP_TOS sets the priority too, so that
	// comes after.
	set("sockets.dscp", sys.IPTOS, s.DSCP<<2, "")
	set("sockets.dscp", sys.TrafficClass, s.DSCP<<2, "")
	set("sockets.priority", sys.Priority, s.Priority, "").each = true
	add(s.Congestion != "", "sockets.congestion", sys.Congestion, 0, "").Text = s.Congestion
	set("sockets.defer_accept", sys.DeferAccept, seconds(s.DeferAccept), "s").listening = true
	return list
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// milliseconds rounds up: 0 would mean without end.
func milliseconds(d hub.Duration) int {
	return int((time.Duration(d) + time.Millisecond - 1) / time.Millisecond)
}

func seconds(d hub.Duration) int { return int(time.Duration(d) / time.Second) }
