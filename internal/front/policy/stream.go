package policy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Record keeps the upstream's replies of type text/event-stream, to GET and POST,
// in the log of a namespace: a client that lost its connection resumes, and a second
// request of the same client for the same attaches to the first. Other replies pass
// as they are. The HTTP/2 front does not record.
type Record struct {
	// Namespace whose log gets the events. It must keep a log and must not be open to
	// anonymous subscribers. Empty means that nothing is recorded.
	Namespace string `json:"namespace"`
	// Outlive is how long the upstream's reply continues without a client that follows
	// it; 0 means 2m, negative that it ends with the last client.
	Outlive hub.Duration `json:"outlive"`
	// Key are request fields, or "cookie:NAME", that distinguish clients that Weir has
	// no identity of, and that are part of the key besides an identity. Empty means
	// Authorization, Cookie and X-API-Key, and for clients without any of these their
	// address.
	Key []string `json:"key"`
	// MaxEvents bounds the events of a recording; beyond, it ends with an error
	// event. 0 means what the namespace's history_size holds, which it may not exceed.
	MaxEvents int `json:"max_events"`
	// MaxBytes bounds the same in bytes of the events; 0 means 8 MiB.
	MaxBytes int64 `json:"max_bytes" unit:"bytes"`
	// MaxConcurrent bounds the recordings under way on this node. Beyond: 503. 0 means
	// 1,000.
	MaxConcurrent int `json:"max_concurrent"`
}

const (
	defaultOutlive    = hub.Duration(2 * time.Minute)
	defaultRecordSize = 8 << 20
	defaultRecordings = 1000
)

// Enabled reports whether anything is recorded.
func (r *Record) Enabled() bool { return r.Namespace != "" }

// WithDefaults returns r with every zero replaced by what it means.
func (r Record) WithDefaults() Record {
	if !r.Enabled() {
		return r
	}
	r.Outlive = cmp.Or(r.Outlive, defaultOutlive)
	r.MaxBytes = cmp.Or(r.MaxBytes, defaultRecordSize)
	r.MaxConcurrent = cmp.Or(r.MaxConcurrent, defaultRecordings)
	return r
}

func (r *Record) validate() error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !r.Enabled() && (r.Outlive != 0 || len(r.Key) > 0 || r.MaxEvents != 0 || r.MaxBytes != 0 || r.MaxConcurrent != 0) {
		say("record.namespace: name the namespace whose log gets the events")
	}
	for _, k := range r.Key {
		if name, ok := strings.CutPrefix(k, "cookie:"); ok && http1.ValidName(name) || http1.ValidName(k) {
			continue
		}
		say("record.key: %q is not a field name; write for example X-Session or cookie:sid", k)
	}
	if r.MaxEvents < 0 || r.MaxBytes < 0 || r.MaxConcurrent < 0 {
		say("record: max_events, max_bytes and max_concurrent must not be negative")
	}
	return errors.Join(errs...)
}

// Hold lets the upstream turn a client's connection into a subscription: it answers
// with Weir-Hold: stream and Weir-Channel (or with GRIP's Grip-Hold and Grip-Channel),
// and is free again. Such fields never reach a client. The HTTP/2 front does not hold.
type Hold struct {
	// Channels are patterns of the channels that the upstream may name, as in a
	// token's grants: "orders.*". Empty means that it may not hold.
	Channels []string `json:"channels"`
	// MaxBody bounds in bytes what the upstream may send before the subscription
	// begins; 0 means 1 MiB.
	MaxBody int64 `json:"max_body" unit:"bytes"`
}

// WithDefaults returns h with every zero replaced by what it means.
func (h Hold) WithDefaults() Hold {
	if len(h.Channels) > 0 && h.MaxBody == 0 {
		h.MaxBody = 1 << 20
	}
	return h
}

func (h *Hold) validate() error {
	_, err := auth.CompilePatterns(h.Channels)
	if err != nil {
		err = fmt.Errorf("hold.channels: %w", err)
	}
	if h.MaxBody < 0 {
		err = errors.Join(err, fmt.Errorf("hold.max_body: %d is negative", h.MaxBody))
	}
	return err
}

// SpeaksGRPCWeb reports whether calls of gRPC-Web are turned into those of gRPC.
func (r *Route) SpeaksGRPCWeb() bool { return r.cfg.GRPCWeb }

// MayHold reports whether the upstream may hold connections at all.
func (r *Route) MayHold() bool { return len(r.cfg.Hold.Channels) > 0 }

// MayHoldOn reports whether the upstream may hold connections on channel.
func (r *Route) MayHoldOn(channel string) bool { return r.hold.Match(channel) }
