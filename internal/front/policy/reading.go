package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
)

// oneReading refuses a request that the library validates in one reading and a
// backend may take in another: it looks at the first of two equal fields, parameters
// or JSON values where many take the last, and does not undo a coding.
func oneReading(route *routers.Route, query url.Values, header http.Header, body []byte) error {
	bad := func(pointer, message string) error {
		return &ValidationError{Status: 400, Message: message, Pointer: pointer}
	}
	if len(header["Content-Type"]) > 1 {
		return bad("header Content-Type", "is repeated")
	}
	params := append(slices.Clone(route.PathItem.Parameters), route.Operation.Parameters...)
	for _, ref := range params {
		p := ref.Value
		switch {
		case p == nil || p.Schema == nil || p.Schema.Value == nil || p.Schema.Value.Type == nil:
		case !p.Schema.Value.Type.Is(openapi3.TypeArray) && !p.Schema.Value.Type.Is(openapi3.TypeObject) &&
			(p.In == openapi3.ParameterInQuery && len(query[p.Name]) > 1 || p.In == openapi3.ParameterInHeader && len(header.Values(p.Name)) > 1):
			return bad(p.In+" parameter "+p.Name, "is repeated")
		}
	}
	if len(body) == 0 || route.Operation.RequestBody == nil {
		return nil
	}
	if c := header.Values("Content-Encoding"); len(c) > 1 || len(c) == 1 && !strings.EqualFold(c[0], "identity") {
		return &ValidationError{Status: 415, Pointer: "header Content-Encoding", Message: "a body with a coding cannot be validated"}
	}
	if t, _, err := mime.ParseMediaType(header.Get("Content-Type")); err == nil && (t == "application/json" || strings.HasSuffix(t, "+json")) {
		if err := oneValue(body); err != nil {
			return bad("body", err.Error())
		}
	}
	return nil
}

var (
	errNotJSON  = errors.New("cannot be read as its Content-Type says")
	errMoreJSON = errors.New("holds more than one JSON value")
	errTwice    = errors.New("has an object with a duplicate name")
)

// oneValue reports why a body is not one JSON value whose objects have each name
// once. It keeps no more than the names of the objects around a place.
func oneValue(body []byte) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var names []map[string]bool // of the objects and arrays around, nil for an array
	key := false                // a name comes next, or the object's end
	for {
		tok, err := d.Token()
		if err != nil {
			return errNotJSON
		}
		switch tok := tok.(type) {
		case json.Delim:
			switch tok {
			case '{':
				names = append(names, map[string]bool{})
			case '[':
				names = append(names, nil)
			default:
				names = names[:len(names)-1]
			}
		case string:
			if key {
				own := names[len(names)-1]
				if own[tok] {
					return errTwice
				}
				own[tok], key = true, false
				continue
			}
		}
		if len(names) == 0 {
			break
		}
		key = names[len(names)-1] != nil
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errMoreJSON
	}
	return nil
}
