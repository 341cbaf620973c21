package wire

import (
	"fmt"
	"net/http"
	"slices"

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
	// Hello makes a WebSocket begin with the stream's position.
	Hello bool
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
