package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-gateway/weir/internal/front/redact"
)

// A Kind is a span's part in a call.
type Kind uint8

// The kinds that we have.
const (
	Internal Kind = iota
	Server        // a request that was answered, or passed on
	Producer      // a message that was published
)

// A Span is a piece of work that is over. Anyone who makes it does no more than fill it in.
type Span struct {
	Trace      [16]byte
	ID, Parent [8]byte // Parent is zero where the trace began here
	Flags      byte    // of the traceparent
	// Remote reports that the parent is in another process.
	Remote bool
	Kind   Kind
	Name   string
	// Start, and what passed until the end.
	Start  time.Time
	Length time.Duration
	// Failed says in words what went wrong; empty: nothing.
	Failed string
	Attrs  []Attr
	// Events are moments within.
	Events []Event
}

// An Attr is a name with a text, or with a number if the text is empty.
type Attr struct {
	Name string
	Text string
	N    int64
}

// An Event is an instant in a span.
type Event struct {
	Name  string
	At    time.Time
	Attrs []Attr
}

// snapshots are spans in the form that the exporter takes.
func (t *Telemetry) snapshots(spans []*Span) []sdktrace.ReadOnlySpan {
	out := make([]sdktrace.ReadOnlySpan, len(spans))
	for i, s := range spans {
		stub := tracetest.SpanStub{
			Name: s.Name, SpanKind: kinds[s.Kind], StartTime: s.Start, EndTime: s.Start.Add(s.Length), Attributes: attributes(s.Attrs),
			SpanContext:          trace.NewSpanContext(trace.SpanContextConfig{TraceID: s.Trace, SpanID: s.ID, TraceFlags: trace.TraceFlags(s.Flags)}),
			Resource:             t.resource,
			InstrumentationScope: instrumentation.Scope{Name: "github.com/weir-gateway/weir"},
		}
		if s.Parent != [8]byte{} {
			stub.Parent = trace.NewSpanContext(trace.SpanContextConfig{TraceID: s.Trace, SpanID: s.Parent, TraceFlags: trace.TraceFlags(s.Flags), Remote: s.Remote})
		}
		if s.Failed != "" {
			stub.Status = sdktrace.Status{Code: codes.Error, Description: redact.Text(s.Failed)}
		}
		for _, e := range s.Events {
			stub.Events = append(stub.Events, sdktrace.Event{Name: e.Name, Time: e.At, Attributes: attributes(e.Attrs)})
		}
		out[i] = stub.Snapshot()
	}
	return out
}

var kinds = [...]trace.SpanKind{Internal: trace.SpanKindInternal, Server: trace.SpanKindServer, Producer: trace.SpanKindProducer}

func attributes(attrs []Attr) []attribute.KeyValue {
	out := make([]attribute.KeyValue, len(attrs))
	for i, a := range attrs {
		if out[i] = attribute.Int64(a.Name, a.N); a.Text != "" {
			text := redact.Text(a.Text)
			if redact.Name(a.Name) {
				text = redact.Mark
			}
			out[i] = attribute.String(a.Name, text)
		}
	}
	return out
}
