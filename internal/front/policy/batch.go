package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Batch makes one call to the upstream of several requests, for models whose call costs much
// and one item more little. Requests are put together if method, path, query, the fields that
// headers names and all of the body but its items are equal. The reply is split, and event
// streams are divided while they come. What cannot be joined (another method than POST, a body
// that cannot be parsed, a single request that waited in vain) is sent alone, as it is.
type Batch struct {
	// Format is how bodies hold items: kserve ("instances", "predictions"),
	// openai_completions ("prompt", "choices", streams too) or openai_embeddings ("input",
	// "data"). Empty means that nothing is batched.
	Format string `json:"format"`
	// MaxItems bounds the items of a call. A request with so many goes alone. 0 means 16.
	MaxItems int `json:"max_items"`
	// MaxWait bounds how long the first request of a call waits for others; 0 means 5ms,
	// negative that it waits only while max_calls are under way.
	MaxWait hub.Duration `json:"max_wait"`
	// MaxCalls bounds the calls under way on this node, those of one request included: what
	// comes meanwhile waits, and joins. 0 means no limit.
	MaxCalls int `json:"max_calls"`
	// MaxQueue bounds the requests that wait for their call. Beyond: 503 with Retry-After. 0
	// means 1,000.
	MaxQueue int `json:"max_queue"`
	// MaxBytes bounds the body of a call. A longer request goes alone. 0 means 1 MiB.
	MaxBytes int64 `json:"max_bytes" unit:"bytes"`
	// MaxReply bounds a reply that is split, an event of a stream, and what waits for one
	// client of a stream. Beyond, the clients get 502; one that does not read is cut. 0 means
	// 8 MiB.
	MaxReply int64 `json:"max_reply" unit:"bytes"`
	// Headers are the request fields, besides Content-Type, that requests of a call have in
	// common; others of the clients' are not sent with a call of several. What the route, its
	// authorization server and extensions set is sent, and must be equal too. Empty means
	// Accept, Authorization, Cookie and X-API-Key.
	Headers []string `json:"headers"`
}

// BatchFormats are the values of Batch.Format.
var BatchFormats = []string{"kserve", "openai_completions", "openai_embeddings"}

const (
	defaultBatchItems = 16
	defaultBatchWait  = hub.Duration(5 * time.Millisecond)
	defaultBatchQueue = 1000
	defaultBatchBytes = 1 << 20
	defaultBatchReply = 8 << 20
)

// Enabled reports whether anything is batched.
func (b *Batch) Enabled() bool { return b.Format != "" }

// WithDefaults returns b with every zero replaced by what it means.
func (b Batch) WithDefaults() Batch {
	if !b.Enabled() {
		return b
	}
	b.MaxItems = cmp.Or(b.MaxItems, defaultBatchItems)
	b.MaxWait = cmp.Or(b.MaxWait, defaultBatchWait)
	b.MaxQueue = cmp.Or(b.MaxQueue, defaultBatchQueue)
	b.MaxBytes = cmp.Or(b.MaxBytes, defaultBatchBytes)
	b.MaxReply = cmp.Or(b.MaxReply, defaultBatchReply)
	return b
}

// validate returns what is wrong with the batch of c, joined.
func (b *Batch) validate(c *RouteConfig) error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf("batch."+format, args...)) }
	if !b.Enabled() {
		if b.MaxItems != 0 || b.MaxWait != 0 || b.MaxCalls != 0 || b.MaxQueue != 0 || b.MaxBytes != 0 || b.MaxReply != 0 || len(b.Headers) > 0 {
			say("format: name what the backend speaks: %s", strings.Join(BatchFormats, ", "))
		}
		return errors.Join(errs...)
	}
	if !slices.Contains(BatchFormats, b.Format) {
		say("format: %q is none of %s", b.Format, strings.Join(BatchFormats, ", "))
	}
	for key, v := range map[string][3]int64{
		"max_items": {int64(b.MaxItems), 2, 10_000}, "max_calls": {int64(b.MaxCalls), 0, 100_000}, "max_queue": {int64(b.MaxQueue), 1, 1_000_000},
		"max_bytes": {b.MaxBytes, 1 << 10, 8 << 20}, "max_reply": {b.MaxReply, 1 << 10, 1 << 30},
	} {
		if v[0] < v[1] || v[0] > v[2] {
			say("%s: %d is not within %d..%d", key, v[0], v[1], v[2])
		}
	}
	switch {
	case b.MaxWait > hub.Duration(time.Minute):
		say("max_wait: %v is above 1m", time.Duration(b.MaxWait))
	case b.MaxWait < 0 && b.MaxCalls == 0:
		say("max_wait: without waiting requests come together only behind a limit of calls: set max_calls")
	}
	for _, n := range b.Headers {
		if !http1.ValidName(n) || slices.Contains(untouchable, strings.ToLower(n)) {
			say("headers: %q is not a field that can be compared", n)
		}
	}
	switch {
	case c.Cluster == "":
		say("format: it is for routes that lead to a cluster")
	case c.Record.Enabled():
		say("format: not with record: what is recorded is one client's stream")
	case len(c.Hold.Channels) > 0:
		say("format: not with hold: a held connection is one client's")
	case c.GRPCWeb:
		say("format: not with grpc_web: calls of gRPC are not joined")
	case len(c.Methods) > 0 && !slices.Contains(c.Methods, "POST"):
		say("format: only POST is joined, and methods does not have it")
	}
	return errors.Join(errs...)
}

// sharedFields are the fields of clients that requests of a call have in common.
func (b *Batch) sharedFields() *nameSet {
	var s nameSet
	s.add("content-type")
	names := b.Headers
	if len(names) == 0 {
		names = []string{"accept", "authorization", "cookie", "x-api-key"}
	}
	for _, n := range names {
		s.add(n)
	}
	return &s
}

// AppendSharedHead appends the head of a call that is made of several requests like x, empty
// line included and without framing: of the client's fields those that batch.headers names,
// and none that says where a request comes from. Clients write names in other letters and order,
// HTTP/2 and HTTP/3 in small ones: here they are written in one way. After Admit, before Retain.
func (r *heads) AppendSharedHead(dst []byte, x *Exchange, host string) []byte {
	all := x.Fields
	x.Fields = sharedOf(all, r.shared.names())
	defer func() { x.Fields = all }()
	return r.AppendRequestHead(dst, x, Framing{Length: -1, Host: host, shared: r.shared})
}

// sharedOf are those of fields that have the names, in the order of the names.
func sharedOf(fields []http1.Field, names []string) (list []http1.Field) {
	perHop := listsNames(fields)
	for _, name := range names {
		for i := range fields {
			if f := &fields[i]; http1.EqualFold(f.Name, name) && !(perHop && listed(fields, f.Name)) {
				list = append(list, http1.Field{Name: []byte(textproto.CanonicalMIMEHeaderKey(name)), Value: f.Value})
			}
		}
	}
	return list
}
