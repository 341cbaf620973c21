package tune

import (
	"cmp"
	"fmt"
	"strings"
)

func classQueues() Check {
	return Check{
		Name: "qdisc.classes", Area: Packets,
		Doc: Doc{
			Threshold: "a link that is named (--link) has a queue for each class of messages, by DSCP",
			Source:    "tc-htb(8), tc-u32(8); RFC 4594",
			Since:     "2.4.20",
			Risk:      "a rate above that of the slowest link on the way has no effect, one below it gives capacity away; one lock for all queues of a card: not for more than some 10 Gbit/s",
			Undo:      "weir tune undo, or: tc qdisc del dev DEVICE root",
		},
		Worth: Worth{None: "no experiment of docs/lab has a link that is full; bench/priority measures one"},
		probe: func(p *probe) verdict {
			switch {
			case p.Queues == nil:
				return verdict{state: Unsupported, why: "not supported here: these files are not the running kernel's, and queues are read from the kernel"}
			case len(p.Links) == 0:
				return verdict{state: OK, why: "no link was named (--link DEVICE=RATE)"}
			}
			v := verdict{state: OK, why: "the classes have their queues"}
			for i := range p.Links {
				if !p.classQueue(&p.Links[i], &v) {
					break
				}
			}
			return v
		},
	}
}

// classQueue checks one link; false ends the check.
func (p *probe) classQueue(l *Link, v *verdict) bool {
	target := QdiscTarget + l.Device
	now, err := p.Queues.Load(target)
	if err != nil {
		*v = verdict{state: unreadable(err), why: "the queue of " + l.Device + " cannot be read: " + err.Error()}
		return false
	}
	want := l.String()
	p.note(l.Device+" qdisc", cmp.Or(now, "the kernel's own"), "rtnetlink")
	v.now = appendTo(v.now, l.Device+": "+cmp.Or(now, "the kernel's own"))
	switch {
	case now == want:
	case now != "" && !strings.HasPrefix(now, "htb, incomplete") && !ours(now):
		*v = watch("%s has a queue that something else made (%s): remove it first (tc qdisc del dev %s root), or divide the link there", l.Device, now, l.Device)
		return false
	default:
		v.state, v.why = Change, "orders wait behind prices in one queue when "+l.Device+" is full"
		v.want = appendTo(v.want, l.Device+": "+want)
		v.steps = append(v.steps, Step{Target: target, Value: want})
		v.config = append(v.config,
			File{Path: qdiscBatch(l.Device), Text: l.Batch()},
			File{Path: fmt.Sprintf("/etc/systemd/system/weir-qdisc-%s.service", l.Device), Text: qdiscUnit(l.Device)})
	}
	return true
}

// ours reports whether a value is a Shape's.
func ours(value string) bool {
	_, err := parseShape(value)
	return err == nil
}

func qdiscBatch(dev string) string { return "/etc/weir/qdisc-" + dev + ".tc" }

// qdiscUnit makes the queues at every boot; stopping it gives the kernel's own queue back.
func qdiscUnit(dev string) string {
	return fmt.Sprintf(`[Unit]
Description=Queues by class of messages on %[1]s (weir tune plan qdisc.classes)
BindsTo=sys-subsystem-net-devices-%[2]s.device
After=sys-subsystem-net-devices-%[2]s.device

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/tc -batch %[3]s
ExecStop=/usr/sbin/tc qdisc del dev %[1]s root

[Install]
WantedBy=multi-user.target
`, dev, strings.ReplaceAll(dev, "-", `\x2d`), qdiscBatch(dev))
}
