package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// writeReference writes docs/reference/admin-api.md.
func writeReference(w io.Writer) {
	fmt.Fprint(w, `# Admin API

<!-- Generated from the code: go test ./internal/observe/admin -run TestReferenceIsCurrent -update -->

The admin listener (`+"`admin.listen`"+`, 127.0.0.1:8001 by default) answers what follows. Answers are JSON unless it says otherwise; durations are
in seconds, sizes in bytes, times as RFC 3339 has them. An answer that is not a success is
`+"`"+`{"error":{"code":404,"message":"…"}}`+"`"+` with the same status.

**Who may.** Without `+"`admin.token`"+` everybody on this machine, and only on loopback. With one it is shown as `+"`Authorization: Bearer`"+`, as the
password of HTTP Basic with any user, or on /login, which sets a cookie (HttpOnly, SameSite=Strict, 12 hours). With `+"`admin.oidc`"+` users of an
OpenID provider log in there, as operators or as readers (HttpOnly, SameSite=Lax); their changes need `+"`Origin`"+` or `+"`Sec-Fetch-Site`"+`, which browsers send. `+"`admin.read_token`"+` lets
in who only reads numbers: /metrics, /debug/vars and GET /api, but no profiles, evidence, messages or traces. With several credentials the highest role counts. Pages of other origins are refused,
and on loopback any Host but an address or localhost.

**Streams** are server-sent events: `+"`event: end`"+` before an orderly end, a comment every 10 or 25 seconds of silence.

| request | what it does |
|---|---|
`)
	list := (&Sources{Metrics: nothing{}, Live: nothing{}, Subscribe: nothing{}}).endpoints(newAccess("", "", nil, slog.New(slog.DiscardHandler)))
	for _, e := range list {
		fmt.Fprintf(w, "| `%s` | %s |\n", e.pattern, strings.ReplaceAll(e.doc, "|", "\\|"))
	}
	fmt.Fprint(w, "\n## Answers\n\nThe values below are types: `number`, `text`, `time`, `true`. A list shows one element; `?` after a name means that it may be missing.\n")
	for _, e := range list {
		if e.answer == nil {
			continue
		}
		var b strings.Builder
		shape(&b, reflect.TypeOf(e.answer), 0)
		fmt.Fprintf(w, "\n### %s\n\n```\n%s\n```\n", e.pattern, b.String())
	}
}

// shape writes what the JSON of a type looks like.
func shape(b *strings.Builder, t reflect.Type, depth int) {
	indent := strings.Repeat("  ", depth+1)
	switch {
	case t == reflect.TypeFor[time.Time]():
		b.WriteString("time")
	case t == reflect.TypeFor[json.RawMessage]():
		b.WriteString("any")
	case t.Kind() == reflect.Pointer:
		shape(b, t.Elem(), depth)
	case t.Implements(reflect.TypeFor[fmt.Stringer]()) && t.Kind() != reflect.Struct, t.Kind() == reflect.String:
		b.WriteString("text")
	case t.Kind() == reflect.Bool:
		b.WriteString("true")
	case t.Kind() == reflect.Interface:
		b.WriteString("any")
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Array:
		b.WriteByte('[')
		shape(b, t.Elem(), depth)
		b.WriteByte(']')
	case t.Kind() == reflect.Map:
		b.WriteString("{text: ")
		shape(b, t.Elem(), depth)
		b.WriteByte('}')
	case t.Kind() == reflect.Struct:
		b.WriteString("{\n")
		fields(b, t, depth)
		b.WriteString(indent[2:] + "}")
	default:
		b.WriteString("number")
	}
}

// fields writes the fields of a struct, those of embedded ones among them.
func fields(b *strings.Builder, t reflect.Type, depth int) {
	for f := range t.Fields() {
		name, opt, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			fields(b, f.Type, depth)
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		if strings.HasPrefix(opt, "omit") || f.Type.Kind() == reflect.Pointer {
			name += "?"
		}
		b.WriteString(strings.Repeat("  ", depth+1) + name + ": ")
		shape(b, f.Type, depth+1)
		b.WriteByte('\n')
	}
}

// nothing replaces what the reference does not need.
type nothing struct{}

func (nothing) ServeHTTP(http.ResponseWriter, *http.Request) {}
func (nothing) Gather() ([]*dto.MetricFamily, error)         { return nil, nil }
