package downstream

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/sse"
)

// A hold is what an upstream's answer says about the client's connection: the part of
// GRIP that is for streams, under GRIP's names or Weir's.
type hold struct {
	*reply
	channels []string
	// since is where the subscription starts, by the channels' prev-id; of several
	// channels of one log the lowest. Empty: the upstream does not say.
	since    hub.Positions
	alive    push.KeepAlive
	answered int // the status of the answer to the client
}

// wantsHold reports whether a reply requests that the connection be held.
func wantsHold(res *http1.Response) bool {
	return res.Get("Weir-Hold") != nil || res.Get("Grip-Hold") != nil
}

// holdFields returns the values of the fields called Weir-name and Grip-name.
func holdFields(res *http1.Response, name string) (values []string) {
	for i := range res.Fields {
		f := &res.Fields[i]
		if len(f.Name) != len("Weir-")+len(name) || !http1.EqualFold(f.Name[5:], name) {
			continue
		}
		if http1.EqualFold(f.Name[:5], "weir-") || http1.EqualFold(f.Name[:5], "grip-") {
			values = append(values, string(f.Value))
		}
	}
	return values
}

// parseHold reads the fields. Whether the channels may be held on is not its matter.
func parseHold(res *http1.Response) (*hold, error) {
	h := &hold{answered: res.Status}
	for _, mode := range holdFields(res, "hold") {
		if !strings.EqualFold(mode, "stream") {
			return nil, fmt.Errorf("hold: %.40q is not supported, only stream is", mode)
		}
	}
	for _, list := range holdFields(res, "channel") {
		for _, item := range splitList(list, ',') {
			if err := h.channel(item); err != nil {
				return nil, fmt.Errorf("channel: %w", err)
			}
		}
	}
	if len(h.channels) == 0 {
		return nil, errors.New("no channel is named")
	}
	for _, v := range holdFields(res, "keep-alive") {
		if err := h.keepAlive(v); err != nil {
			return nil, fmt.Errorf("keep-alive: %w", err)
		}
	}
	for _, v := range holdFields(res, "status") {
		code, _, _ := strings.Cut(v, " ")
		n, err := strconv.Atoi(code)
		if err != nil || n < 200 || n > 599 || n == 204 || n == 205 || n == 304 {
			return nil, fmt.Errorf("status: %.40q is not a status of an answer with a body", v)
		}
		h.answered = n
	}
	kind, _, _ := bytes.Cut(res.Get("Content-Type"), []byte{';'})
	if kind != nil && !http1.EqualFold(bytes.TrimSpace(kind), sse.ContentType) {
		return nil, fmt.Errorf("the reply is of type %.60q; what is held is a stream of %s", kind, sse.ContentType)
	}
	if c := res.Get("Content-Encoding"); c != nil && !http1.EqualFold(c, "identity") {
		return nil, fmt.Errorf("the reply is coded in %.20q; what is held goes out plain", c)
	}
	return h, nil
}

// channel reads "name; prev-id=…".
func (h *hold) channel(item string) error {
	parts := splitList(item, ';')
	if len(parts) == 0 || parts[0] == "" {
		return errors.New("its name is empty")
	}
	name := parts[0]
	if err := hub.CheckChannel(name); err != nil {
		return err
	}
	for _, p := range parts[1:] {
		key, value, _ := strings.Cut(p, "=")
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "":
		case "prev-id":
			ps, err := hub.ParsePositions(unquote(strings.TrimSpace(value)))
			if err != nil {
				return fmt.Errorf("prev-id of %.60q: %w", name, err)
			}
			h.startAt(ps)
		default:
			return fmt.Errorf("%.60q: the parameter %.40q is not supported", name, key)
		}
	}
	for _, c := range h.channels {
		if c == name {
			return nil
		}
	}
	h.channels = append(h.channels, name)
	return nil
}

// startAt takes positions into since.
func (h *hold) startAt(ps hub.Positions) {
next:
	for _, p := range ps {
		for i := range h.since {
			if s := &h.since[i]; s.Epoch == p.Epoch {
				if p.Offset < s.Offset {
					*s = p
				}
				continue next
			}
		}
		h.since = append(h.since, p)
	}
}

const (
	maxKeepAlive     = 4 << 10
	minKeepAliveTime = time.Second
)

// keepAlive reads "text; format=raw|cstring|base64; timeout=seconds". What mode says
// is not looked at: it is always idle.
func (h *hold) keepAlive(v string) error {
	parts := splitList(v, ';')
	if len(parts) == 0 {
		return errors.New("it is empty")
	}
	text, format := parts[0], "raw"
	for _, p := range parts[1:] {
		key, value, _ := strings.Cut(p, "=")
		value = unquote(strings.TrimSpace(value))
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "format":
			format = strings.ToLower(value)
		case "timeout":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > 24*3600 {
				return fmt.Errorf("timeout: %.20q is not a number of seconds within 1..86400", value)
			}
			h.alive.Every = max(time.Duration(n)*time.Second, minKeepAliveTime)
		}
	}
	b, err := keepAliveText(text, format)
	if err != nil {
		return err
	}
	if len(b) > maxKeepAlive {
		return fmt.Errorf("%d bytes, at most %d", len(b), maxKeepAlive)
	}
	h.alive.Text = b
	return nil
}

func keepAliveText(text, format string) ([]byte, error) {
	switch format {
	case "raw":
		return []byte(text), nil
	case "base64":
		return base64.StdEncoding.DecodeString(text)
	case "cstring":
		return unescape(text)
	}
	return nil, fmt.Errorf("format: %.20q is none of raw, cstring, base64", format)
}

// unescape reads the escapes of a C string that GRIP knows.
func unescape(s string) ([]byte, error) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		if i++; i == len(s) {
			return nil, errors.New("it ends within an escape")
		}
		switch s[i] {
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case '0':
			b = append(b, 0)
		case '\\', '"', '\'', ';', ',':
			b = append(b, s[i])
		default:
			return nil, fmt.Errorf("the escape \\%c is not known", s[i])
		}
	}
	return b, nil
}

// splitList splits s at sep, but not within quotes or after a backslash, and trims
// the parts.
func splitList(s string, sep byte) (parts []string) {
	quoted, from := false, 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == sep && !quoted:
			parts = append(parts, strings.TrimSpace(s[from:i]))
			from = i + 1
		}
	}
	return append(parts, strings.TrimSpace(s[from:]))
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}
