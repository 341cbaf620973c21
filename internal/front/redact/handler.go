package redact

import (
	"context"
	"fmt"
	"log/slog"
)

// Handler returns a handler of logs that hides secrets in messages and attributes and
// passes records on to next.
func Handler(next slog.Handler) slog.Handler { return handler{next} }

type handler struct{ next slog.Handler }

// Enabled implements slog.Handler.
func (h handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, Text(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(Attr(a))
		return true
	})
	return h.next.Handle(ctx, clean)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = Attr(a)
	}
	return handler{h.next.WithAttrs(clean)}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler { return handler{h.next.WithGroup(name)} }

// Attr returns a without secrets.
func Attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindGroup:
		group := v.Group()
		clean := make([]slog.Attr, len(group))
		for i, m := range group {
			clean[i] = Attr(m)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(clean...)}
	case slog.KindString:
		if Name(a.Key) && v.String() != "" {
			return slog.String(a.Key, Mark)
		}
		if t := Text(v.String()); t != v.String() {
			return slog.String(a.Key, t)
		}
	case slog.KindAny:
		text := ""
		switch x := v.Any().(type) {
		case error:
			text = x.Error()
		case fmt.Stringer:
			text = x.String()
		case []string:
			text = fmt.Sprint(x)
		default:
			return slog.Attr{Key: a.Key, Value: v}
		}
		if Name(a.Key) && text != "" {
			return slog.String(a.Key, Mark)
		}
		if t := Text(text); t != text {
			return slog.String(a.Key, t)
		}
	default:
	}
	return slog.Attr{Key: a.Key, Value: v}
}
