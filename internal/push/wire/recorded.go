package wire

import (
	"encoding/json"
	"strconv"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/sse"
)

// A Record is one message of a recording's channel. On the channel it is JSON, so
// that who follows the channel in another form gets a payload like any other; a
// client of the recording gets the block that the upstream sent, under an id of ours.
type Record struct {
	// Mark is empty for an event of the upstream.
	Mark Mark `json:"weir,omitempty"`
	// Event, Data and Retry are the block's fields; a nil one was not there. ID is the
	// upstream's own id.
	Event string  `json:"event,omitempty"`
	ID    *string `json:"id,omitempty"`
	Data  *string `json:"data,omitempty"`
	Retry *int    `json:"retry,omitempty"`
	// Code, Cause and Reason say why a recording is Broken.
	Code   int    `json:"code,omitempty"`
	Cause  string `json:"cause,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// A Mark ends a recording.
type Mark string

// The marks.
const (
	MarkEnd    Mark = "end"    // the upstream's stream was complete
	MarkBroken Mark = "broken" // it was not
)

// AppendRecord appends r as the payload of a message.
func AppendRecord(dst []byte, r *Record) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic("a record cannot be marshalled: " + err.Error())
	}
	return append(dst, b...)
}

// ParseRecord reads a payload; ok is false if it is none of AppendRecord's.
func ParseRecord(data []byte) (r Record, ok bool) {
	err := json.Unmarshal(data, &r)
	return r, err == nil
}

// EndsRecording reports whether a payload is the last of its recording. It looks at
// its first bytes only.
func EndsRecording(data []byte) bool {
	const mark = `{"weir":"`
	return len(data) > len(mark) && string(data[:len(mark)]) == mark
}

// appendRecorded writes a message of a recording: our id line and the upstream's
// block. The upstream's id is in a field of its own, which readers that do not
// know it skip (WHATWG HTML §9.2.6). The end is a block without data: no event, but
// from then on a client that comes back says that it has everything.
func appendRecorded(dst []byte, m *hub.Message) []byte {
	r, ok := ParseRecord(m.Data)
	if !ok {
		return appendSSE(dst, m) // another client published into the channel
	}
	dst = appendID(grow(dst, len(m.Data)+48), m)
	switch r.Mark {
	case "":
	case MarkEnd:
		return sse.AppendEnd(dst)
	default:
		return sse.AppendEnd(sse.AppendData(sse.AppendType(dst, "error"), appendBroken(nil, &r)))
	}
	if r.ID != nil && sse.CheckField(*r.ID) == nil {
		dst = append(append(append(dst, "upstream-id: "...), *r.ID...), '\n')
	}
	if r.Event != "" {
		dst = sse.AppendType(dst, r.Event)
	}
	if r.Retry != nil {
		dst = sse.AppendRetry(dst, *r.Retry)
	}
	if r.Data != nil {
		dst = sse.AppendData(dst, *r.Data)
	}
	return sse.AppendEnd(dst)
}

// appendBroken appends what a client is notified when a recording is incomplete.
func appendBroken(dst []byte, r *Record) []byte {
	dst = strconv.AppendInt(append(dst, `{"truncated":true,"code":`...), int64(r.Code), 10)
	dst = jsontext.AppendString(append(dst, `,"cause":`...), r.Cause)
	dst = jsontext.AppendString(append(dst, `,"reason":`...), r.Reason)
	return append(dst, '}')
}
