package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
)

// Events of the protocol itself.
const (
	EventEstablished       = "pusher:connection_established"
	EventError             = "pusher:error"
	EventPing              = "pusher:ping"
	EventPong              = "pusher:pong"
	EventSubscribe         = "pusher:subscribe"
	EventUnsubscribe       = "pusher:unsubscribe"
	EventSignin            = "pusher:signin"
	EventSigninSuccess     = "pusher:signin_success"
	EventCacheMiss         = "pusher:cache_miss"
	EventSubscriptionError = "pusher:subscription_error"
	EventSubscribed        = "pusher_internal:subscription_succeeded"
	EventCount             = "pusher_internal:subscription_count"
	EventWatchlist         = "pusher_internal:watchlist_events"
	EventMemberAdded       = "pusher_internal:member_added"
	EventMemberRemoved     = "pusher_internal:member_removed"
)

// A Frame is what a client sends.
type Frame struct {
	Event   string
	Channel string
	// Data is the JSON text of the field as it came, nil if there was none. It is
	// part of what was parsed.
	Data []byte
}

var errNoEvent = errors.New("a message is a JSON object with an event")

// ParseFrame reads a message of a client. b is not kept, but the result's Data is
// part of it.
func ParseFrame(b []byte) (Frame, error) {
	var f struct {
		Event   *string         `json:"event"`
		Channel *string         `json:"channel"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return Frame{}, fmt.Errorf("%w: %w", errNoEvent, err)
	}
	if f.Event == nil || *f.Event == "" {
		return Frame{}, errNoEvent
	}
	out := Frame{Event: *f.Event, Data: f.Data}
	if f.Channel != nil {
		out.Channel = *f.Channel
	}
	return out, nil
}

// Fields reads data that is an object, or a string with an object's JSON text, into v.
func Fields(data []byte, v any) error {
	data = bytes.TrimSpace(data)
	if len(data) > 0 && data[0] == '"' {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		data = []byte(text)
	}
	if len(data) == 0 {
		return errors.New("data is missing")
	}
	return json.Unmarshal(data, v)
}

// Text returns the text that a receiver is to get for data that was sent as text or
// as a value, and whether it is JSON.
func Text(data []byte) (text []byte, isJSON bool) {
	data = bytes.TrimSpace(data)
	switch {
	case len(data) == 0:
		return []byte("null"), true
	case data[0] != '"':
		return bytes.Clone(data), true
	}
	var s string
	if json.Unmarshal(data, &s) != nil {
		return bytes.Clone(data), false
	}
	return []byte(s), json.Valid([]byte(s))
}

// Subscribe is the data of pusher:subscribe and pusher:unsubscribe.
type Subscribe struct {
	Channel     string `json:"channel"`
	Auth        string `json:"auth"`
	ChannelData string `json:"channel_data"`
}

// Signin is the data of pusher:signin.
type Signin struct {
	Auth     string `json:"auth"`
	UserData string `json:"user_data"`
}

// A Member is who subscribes to a presence channel: channel_data.
type Member struct {
	ID string
	// Info is JSON, nil if there is none.
	Info json.RawMessage
}

// ParseMember reads channel_data.
func ParseMember(data string) (Member, error) {
	var m struct {
		ID   json.RawMessage `json:"user_id"`
		Info json.RawMessage `json:"user_info"`
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return Member{}, fmt.Errorf("channel_data is not a JSON object: %w", err)
	}
	id, err := userID(m.ID)
	if err != nil {
		return Member{}, fmt.Errorf("user_id of channel_data %w", err)
	}
	return Member{ID: id, Info: m.Info}, nil
}

// A SignedIn is user_data.
type SignedIn struct {
	ID        string
	Info      json.RawMessage
	Watchlist []string
}

// ParseUser reads user_data.
func ParseUser(data string) (SignedIn, error) {
	var u struct {
		ID        json.RawMessage `json:"id"`
		Info      json.RawMessage `json:"user_info"`
		Watchlist []string        `json:"watchlist"`
	}
	if err := json.Unmarshal([]byte(data), &u); err != nil {
		return SignedIn{}, fmt.Errorf("user_data is not a JSON object: %w", err)
	}
	id, err := userID(u.ID)
	if err != nil {
		return SignedIn{}, fmt.Errorf("id of user_data %w", err)
	}
	return SignedIn{ID: id, Info: u.Info, Watchlist: u.Watchlist}, nil
}

// userID reads an id that applications write as a string or as a number.
func userID(raw json.RawMessage) (string, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '"' {
		var n json.Number
		if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &n) != nil {
			return "", errors.New("is missing, or neither a string nor a number")
		}
		return n.String(), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", err
	}
	if s == "" {
		return "", errors.New("is empty")
	}
	return s, nil
}

// AppendEvent appends an event with data as the text that a client gets. channel and
// user are left out if empty; data if nil.
func AppendEvent(dst []byte, event, channel string, data []byte, user string) []byte {
	dst = append(dst, `{"event":`...)
	dst = jsontext.AppendString(dst, event)
	if channel != "" {
		dst = append(dst, `,"channel":`...)
		dst = jsontext.AppendString(dst, channel)
	}
	if data != nil {
		dst = append(dst, `,"data":`...)
		dst = jsontext.AppendString(dst, data)
	}
	if user != "" {
		dst = append(dst, `,"user_id":`...)
		dst = jsontext.AppendString(dst, user)
	}
	return append(dst, '}')
}

// AppendError appends pusher:error. Its data is an object, as clients of version 7
// expect of errors.
func AppendError(dst []byte, code int, channel, message string) []byte {
	dst = append(dst, `{"event":"pusher:error"`...)
	if channel != "" {
		dst = append(dst, `,"channel":`...)
		dst = jsontext.AppendString(dst, channel)
	}
	dst = append(dst, `,"data":{"code":`...)
	dst = strconv.AppendInt(dst, int64(code), 10)
	dst = append(dst, `,"message":`...)
	dst = jsontext.AppendString(dst, message)
	return append(dst, "}}"...)
}

// AppendSubscriptionError appends pusher:subscription_error. kind is a word like
// AuthError, status one of HTTP.
func AppendSubscriptionError(dst []byte, channel, kind, message string, status int) []byte {
	dst = append(dst, `{"event":"pusher:subscription_error","channel":`...)
	dst = jsontext.AppendString(dst, channel)
	dst = append(dst, `,"data":{"type":`...)
	dst = jsontext.AppendString(dst, kind)
	dst = append(dst, `,"error":`...)
	dst = jsontext.AppendString(dst, message)
	dst = append(dst, `,"status":`...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	return append(dst, "}}"...)
}

// AppendEstablished appends the greeting.
func AppendEstablished(dst []byte, socket string, activity int) []byte {
	data := append([]byte(`{"socket_id":"`), socket...)
	data = append(data, `","activity_timeout":`...)
	data = strconv.AppendInt(data, int64(activity), 10)
	return AppendEvent(dst, EventEstablished, "", append(data, '}'), "")
}

// AppendMembers appends the data of subscription_succeeded on a presence channel.
func AppendMembers(dst []byte, members []Member) []byte {
	dst = append(dst, `{"presence":{"ids":[`...)
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsontext.AppendString(dst, m.ID)
	}
	dst = append(dst, `],"hash":{`...)
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsontext.AppendString(dst, m.ID)
		dst = append(dst, ':')
		dst = appendInfo(dst, m.Info)
	}
	dst = append(dst, `},"count":`...)
	dst = strconv.AppendInt(dst, int64(len(members)), 10)
	return append(dst, "}}"...)
}

// AppendMember appends the data of member_added, or with gone that of member_removed.
func AppendMember(dst []byte, m Member, gone bool) []byte {
	dst = append(dst, `{"user_id":`...)
	dst = jsontext.AppendString(dst, m.ID)
	if !gone {
		dst = append(dst, `,"user_info":`...)
		dst = appendInfo(dst, m.Info)
	}
	return append(dst, '}')
}

func appendInfo(dst, info []byte) []byte {
	if len(info) == 0 {
		return append(dst, "null"...)
	}
	return append(dst, info...)
}

// AppendCount appends the data of subscription_count.
func AppendCount(dst []byte, n int) []byte {
	dst = append(dst, `{"subscription_count":`...)
	dst = strconv.AppendInt(dst, int64(n), 10)
	return append(dst, '}')
}

// AppendWatchlist appends the data of watchlist_events: what is online or offline.
func AppendWatchlist(dst []byte, what string, users []string) []byte {
	dst = append(dst, `{"events":[{"name":`...)
	dst = jsontext.AppendString(dst, what)
	dst = append(dst, `,"user_ids":[`...)
	for i, u := range users {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsontext.AppendString(dst, u)
	}
	return append(dst, "]}]}"...)
}
