package policy

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/redact"
	"github.com/weir-gateway/weir/internal/protocol/jsontext"
)

// mayLog reports whether x may get a line: sampled, or only if it fails.
func (x *Exchange) mayLog() bool {
	if x.Route != nil {
		return x.Route.logged
	}
	return x.set != nil && x.set.deps.AccessLog != nil
}

// describe writes the request's part of the line while the request is there.
func (x *Exchange) describe() {
	if len(x.line) > 0 || !x.mayLog() {
		return
	}
	b := append(x.line[:0], `,"method":`...)
	b = jsontext.AppendString(b, x.Method)
	b = append(b, `,"host":`...)
	b = jsontext.AppendString(b, x.Host)
	b = append(b, `,"path":`...)
	path := x.path
	if path == nil {
		path = x.Path
	}
	x.lines = redact.AppendPath(x.lines[:0], path)
	b = jsontext.AppendString(b, x.lines)
	if x.Query != nil {
		b = append(b, `,"query":`...)
		if x.Route != nil {
			x.lines = redact.AppendQuery(x.lines[:0], x.Query, x.Route.redact)
		} else {
			x.lines = append(x.lines[:0], redact.Mark...) // no route specifies what else is secret
		}
		b = jsontext.AppendString(b, x.lines)
	}
	if x.Route != nil && len(x.Route.cfg.AccessLog.Headers) > 0 {
		b = x.describeHeaders(b)
	}
	x.line = b
}

func (x *Exchange) describeHeaders(b []byte) []byte {
	b = append(b, `,"headers":{`...)
	first := true
	for _, name := range x.Route.cfg.AccessLog.Headers {
		v := x.Fields.Get(name)
		if v == nil {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(strconv.AppendQuote(b, strings.ToLower(name)), ':')
		if redact.Name(name) {
			b = append(b, `"`+redact.Mark+`"`...)
		} else {
			b = jsontext.AppendString(b, redact.Text(string(v)))
		}
	}
	return append(b, '}')
}

// writeLine hands the finished line to the log.
func (x *Exchange) writeLine(o *Outcome) {
	if !x.mayLog() || x.Route != nil && !x.logged && o.Status < 500 {
		return
	}
	x.describe()
	b := append(x.lines[:0], `{"time":"`...)
	b = time.Now().UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","route":`...)
	if x.Route != nil {
		b = jsontext.AppendString(b, x.Route.cfg.Name)
	} else {
		b = append(b, `""`...)
	}
	b = strconv.AppendInt(append(b, `,"status":`...), int64(o.Status), 10)
	b = strconv.AppendFloat(append(b, `,"duration_ms":`...), float64(o.DurationNS)/1e6, 'f', 3, 64)
	b = strconv.AppendInt(append(b, `,"bytes_in":`...), o.BytesIn, 10)
	b = strconv.AppendInt(append(b, `,"bytes_out":`...), o.BytesOut, 10)
	if o.GRPC {
		b = strconv.AppendInt(append(b, `,"grpc_status":`...), int64(o.GRPCStatus), 10)
	}
	if o.Upstream != "" {
		b = jsontext.AppendString(append(b, `,"upstream":`...), o.Upstream)
	}
	if o.Retries > 0 {
		b = strconv.AppendInt(append(b, `,"retries":`...), int64(o.Retries), 10)
	}
	if x.Trace.ID != [16]byte{} {
		b = hex.AppendEncode(append(b, `,"trace_id":"`...), x.Trace.ID[:])
		b = hex.AppendEncode(append(b, `","span_id":"`...), x.Trace.Span[:])
		b = append(b, '"')
	}
	client := x.Client
	if !client.IsValid() {
		client = x.Peer.Addr()
	}
	b = append(appendAddr(append(b, `,"client":"`...), client), '"')
	if x.Identity != nil && x.Identity.By != "" {
		b = jsontext.AppendString(append(b, `,"sub":`...), x.Identity.Subject)
		b = jsontext.AppendString(append(b, `,"auth":`...), x.Identity.By)
	}
	b = append(append(b, x.line...), "}\n"...)
	x.lines = b
	x.set.deps.AccessLog.add(b)
}
