package tune

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// ErrUnsupported is returned for what a device does not support. Test with errors.Is.
var ErrUnsupported = errors.New("not supported here")

// An EthtoolReader reads a network card's settings by device name. ErrUnsupported is for
// what the driver does not have.
type EthtoolReader interface {
	Channels(dev string) (Channels, error)
	Rings(dev string) (Rings, error)
	Coalesce(dev string) (Coalesce, error)
	Features(dev string) (map[string]Feature, error)
}

// Channels are a card's queues, each pair of receive and transmit as one in Combined.
type Channels struct{ RX, Combined, MaxRX, MaxCombined int }

// Rings are the lengths of a card's receive ring.
type Rings struct{ RX, MaxRX int }

// Coalesce is how long a card gathers packets before it interrupts.
type Coalesce struct {
	RXMicros   int
	AdaptiveRX bool
}

// A Feature is an offload: whether the card can do it, and does.
type Feature struct{ Possible, Active bool }

// perDevice checks every network card. An error for one decides the verdict.
func perDevice(judge func(p *probe, dev string, v *verdict) error, fine string) func(*probe) verdict {
	return func(p *probe) verdict {
		devices := p.devices()
		if len(devices) == 0 {
			return verdict{state: Unsupported, why: "not supported here: this network namespace has no network card, only virtual devices"}
		}
		v := verdict{state: OK, why: fine}
		for _, dev := range devices {
			err := judge(p, dev, &v)
			switch state := unreadable(err); state {
			case OK:
			case Unsupported:
				if v.state == OK {
					v = verdict{state: state, now: v.now, why: "not supported here: " + strings.TrimSuffix(err.Error(), ": "+ErrUnsupported.Error())}
				}
			case Absent:
				return verdict{state: state, why: fmt.Sprintf("%s: this kernel does not have it: %v", dev, err)}
			default:
				return verdict{state: state, why: fmt.Sprintf("%s cannot be read: %v", dev, err)}
			}
		}
		return v
	}
}

// perCard is perDevice for what only ethtool reads.
func perCard[T any](read func(EthtoolReader, string) (T, error), judge func(p *probe, dev string, has T, v *verdict) error, fine string) func(*probe) verdict {
	all := perDevice(func(p *probe, dev string, v *verdict) error {
		has, err := read(p.Card, dev)
		if err != nil {
			return err
		}
		return judge(p, dev, has, v)
	}, fine)
	return func(p *probe) verdict {
		if p.Card == nil {
			return verdict{state: Unsupported, why: "not supported here: these files are not the running kernel's, and a card is read from the kernel"}
		}
		return all(p)
	}
}

// need adds a step.
func (v *verdict) need(s Step, format string, a ...any) {
	v.state, v.why = Change, fmt.Sprintf(format, a...)
	v.want = appendTo(v.want, path.Base(path.Dir(s.Target))+": "+s.Value)
	v.steps = append(v.steps, s)
}

// configure adds a line of a configuration file for what apply leaves alone.
func (v *verdict) configure(f File, want, format string, a ...any) {
	v.state, v.why = Change, fmt.Sprintf(format, a...)
	v.want = appendTo(v.want, want)
	v.config = append(v.config, f)
}

// queues are the directories of a device's queues: prefix is rx- or tx-.
func (p *probe) queues(dev, prefix string) []string {
	dir := path.Join("/sys/class/net", dev, "queues")
	var dirs []string
	for _, name := range p.list(dir) {
		if strings.HasPrefix(name, prefix) {
			dirs = append(dirs, path.Join(dir, name))
		}
	}
	return dirs
}

// usesRPS reports whether a queue of a card steers packets to other processors.
func (p *probe) usesRPS() bool {
	for _, dev := range p.devices() {
		for _, q := range p.queues(dev, "rx-") {
			s, err := p.read(path.Join(q, "rps_cpus"))
			if err == nil && strings.Trim(s, "0,") != "" {
				p.note(dev+" "+path.Base(q)+" rps_cpus", s, path.Join(q, "rps_cpus"))
				return true
			}
		}
	}
	return false
}

// appendTo joins what is known of several devices.
func appendTo(list, more string) string {
	if list == "" {
		return more
	}
	return list + "; " + more
}

func joined(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
