package observe

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/observe/telemetry"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Spans makes the spans of traces: those of publications with the probe's help.
type Spans struct {
	Telemetry *telemetry.Telemetry
	Probe     *Probe
}

// Publish notes that the publish of call is part of a trace: if that is sampled, a
// span is made of it, and if messages are to carry it, they do. It comes before the call
// is carried out.
func (a *Spans) Publish(call *wire.Call, traceparent []byte) {
	t, ok := policy.ParseTraceparent(traceparent)
	if !ok {
		return
	}
	p := &call.Publication
	if a.Telemetry.MessageTag() {
		at := hub.Attributes{}
		if p.Attributes != nil {
			at = *p.Attributes
		}
		tags := map[string]string{"traceparent": string(traceparent)}
		maps.Copy(tags, at.Tags) // what the publisher says itself counts
		at.Tags = tags
		if at.Validate() == nil {
			p.Attributes = &at
		}
	}
	if t.Flags&policy.FlagSampled != 0 && len(p.Data) > 0 {
		a.Probe.follow(&followRequest{data: &p.Data[0], trace: &t})
	}
}

// Proxied makes the span of a request that a route served.
func (a *Spans) Proxied(x *policy.Exchange, o policy.Outcome, method, path []byte) {
	took := time.Duration(o.DurationNS)
	s := &telemetry.Span{
		Trace: x.Trace.ID, ID: x.Trace.Span, Parent: x.Trace.Parent, Flags: x.Trace.Flags, Remote: true, Kind: telemetry.Server,
		Start: time.Now().Add(-took), Length: took,
		Attrs: []telemetry.Attr{
			{Name: "http.request.method", Text: string(method)}, {Name: "url.path", Text: string(path)},
			{Name: "http.response.status_code", N: int64(o.Status)}, {Name: "http.response.body.size", N: o.BytesOut},
			{Name: "client.address", Text: x.Client.String()},
		},
	}
	s.Name = s.Attrs[0].Text
	if x.Route != nil {
		s.Name += " " + x.Route.Name()
		s.Attrs = append(s.Attrs, telemetry.Attr{Name: "http.route", Text: x.Route.Name()})
	}
	if o.Upstream != "" {
		s.Attrs = append(s.Attrs, telemetry.Attr{Name: "weir.upstream", Text: o.Upstream}, telemetry.Attr{Name: "weir.retries", N: int64(o.Retries)})
	}
	if o.Status >= 500 {
		s.Failed = "the answer is an error"
	}
	if x.Loop > 0 {
		a.Telemetry.Put(x.Loop-1, s)
	} else {
		a.Telemetry.PutAny(s)
	}
}

// newID makes an id that is not zero.
func newID() (id [8]byte) {
	for id == [8]byte{} {
		binary.LittleEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// spans makes the spans of a publish: the whole of it, the wait for the broker, and the
// fan-out to the loops.
func (f *flight) spans() {
	tr := *f.trace
	if tr.ID == [16]byte{} {
		a, b := newID(), newID()
		copy(tr.ID[:], a[:])
		copy(tr.ID[8:], b[:])
	}
	span := func(name string, parent [8]byte, kind telemetry.Kind, from, to time.Duration) *telemetry.Span {
		return &telemetry.Span{Trace: tr.ID, ID: newID(), Parent: parent, Flags: tr.Flags, Kind: kind, Name: name, Start: f.accepted.Add(from), Length: max(to-from, 0)}
	}
	end := f.stored
	for _, w := range f.wrote {
		end = max(end, w.done)
	}
	all := span("publish "+hub.NamespaceOf(f.channel), tr.Parent, telemetry.Producer, 0, end)
	all.Remote = true
	all.Attrs = []telemetry.Attr{
		{Name: "messaging.system", Text: "weir"}, {Name: "messaging.operation.type", Text: "send"},
		{Name: "messaging.destination.name", Text: f.channel}, {Name: "messaging.message.body.size", N: int64(len(f.data))},
	}
	if !f.at.IsZero() {
		all.Attrs = append(all.Attrs, telemetry.Attr{Name: "messaging.message.id", Text: f.at.String()})
	}
	if f.err != nil {
		all.Failed = f.err.Error()
	}
	store := span("store", all.ID, telemetry.Internal, 0, f.stored)
	store.Failed = all.Failed
	f.probe.telemetry.PutAny(all)
	f.probe.telemetry.PutAny(store)
	if f.matched && len(f.wrote) > 0 {
		f.probe.telemetry.PutAny(f.fanOut(span("fan-out", all.ID, telemetry.Internal, f.arrived, f.queued)))
	}
}

// fanOut completes the span of the fan-out: its end, and when which loop had written.
func (f *flight) fanOut(s *telemetry.Span) *telemetry.Span {
	for _, w := range f.wrote {
		s.Length = max(s.Length, w.done-f.arrived)
		s.Events = append(s.Events, telemetry.Event{Name: "written", At: f.accepted.Add(w.done), Attrs: []telemetry.Attr{
			{Name: "weir.loop", N: int64(w.loop)}, {Name: "weir.delivered", N: int64(w.delivered)}, {Name: "weir.sends", N: int64(w.sends)},
		}})
	}
	return s
}
