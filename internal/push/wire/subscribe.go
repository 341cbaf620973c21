package wire

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Subscription is what the query of /sse or /ws requests.
type Subscription struct {
	Channels []string
	// Since is the position token to resume after; "" requests live messages
	// only, "0" for everything retained.
	Since string
	// Envelope wraps SSE payloads even with one channel.
	Envelope bool
	// Hello makes a WebSocket start with the stream's position.
	Hello bool
	// MaxBackoff is the longest that the client waits, or is made to wait, between two of its own
	// actions, as it says; 0: it does not.
	MaxBackoff time.Duration
}

// The names by which a client says its longest back-off, in the query or in a field of any
// protocol's request.
const (
	MaxBackoffQuery = "max_backoff"
	MaxBackoffField = "Weir-Max-Backoff"
)

// ParseMaxBackoff reads what a client says of its longest back-off: seconds, or a duration as Go
// writes it. It is 1 ms to 24 h.
func ParseMaxBackoff(s string) (time.Duration, *Error) {
	d, err := time.ParseDuration(s)
	if n, nerr := strconv.ParseFloat(s, 64); nerr == nil && n < 1e6 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < time.Millisecond || d > 24*time.Hour {
		return 0, &Error{Status: http.StatusBadRequest, Message: MaxBackoffQuery + ": " + strconv.Quote(Printable(s, 40)) + " is not a time of 1ms to 24h", Hint: "write seconds, as 30, or 30s"}
	}
	return d, nil
}

// ParseSubscription reads the query of /sse and /ws. At most maxChannels are
// allowed.
func ParseSubscription(h *hub.Hub, query []byte, maxChannels int) (*Subscription, *Error) {
	bad := func(msg, hint string) (*Subscription, *Error) {
		return nil, &Error{Status: http.StatusBadRequest, Message: msg, Hint: hint}
	}
	sub := &Subscription{}
	for pair, err := range http1.Query(query) {
		if err != nil {
			return bad(err.Error(), "")
		}
		switch string(pair.Name) {
		case "channel":
			ch := string(pair.Value)
			if err := hub.CheckChannel(ch); err != nil {
				return bad(err.Error(), "")
			}
			if _, err := h.Namespace(ch); err != nil {
				return nil, ErrorOf(err)
			}
			if !slices.Contains(sub.Channels, ch) {
				sub.Channels = append(sub.Channels, ch)
			}
		case "lastEventId", "since":
			sub.Since = string(pair.Value)
		case "envelope":
			sub.Envelope = truthy(pair.Value)
		case MaxBackoffQuery:
			d, bad := ParseMaxBackoff(string(pair.Value))
			if bad != nil {
				return nil, bad
			}
			sub.MaxBackoff = d
		case "hello":
			sub.Hello = truthy(pair.Value)
		}
		if len(sub.Channels) > maxChannels {
			return bad("too many channels", "raise push.max_channels")
		}
	}
	if n := h.Logs(sub.Channels); n > hub.MaxPositions {
		return bad(fmt.Sprintf("channels of %d logs, at most %d in one stream", n, hub.MaxPositions), "open another stream")
	}
	if len(sub.Channels) == 0 {
		return bad("no channel is named", "add ?channel=NAME, once per channel")
	}
	return sub, nil
}

// Options reads s.Since.
func (s *Subscription) Options() hub.SubscribeOptions { return Options(s.Channels, s.Since) }

// Options reads a position token: "" requests live messages only, "0" for
// everything retained.
func Options(channels []string, since string) hub.SubscribeOptions {
	o := hub.SubscribeOptions{Channels: channels}
	switch since {
	case "":
	case "0":
		o.All = true
	default:
		ps, err := hub.ParsePositions(since)
		if err != nil {
			o.Unknown = Printable(since, 64)
		}
		o.Since = ps
	}
	return o
}

func truthy(b []byte) bool { return len(b) > 0 && string(b) != "0" && string(b) != "false" }
