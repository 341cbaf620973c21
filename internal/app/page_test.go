package app

import (
	"encoding/json"
	"io/fs"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/dashboard"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// The page binds numbers by their JSON names: a field that is renamed must not leave a
// dash behind unnoticed.
func TestThePageShowsFieldsThatThereAre(t *testing.T) {
	html, err := fs.ReadFile(dashboard.Files(), "index.html")
	if err != nil {
		t.Fatal(err)
	}
	bound := regexp.MustCompile(`data-v="([^"|]+)`).FindAllStringSubmatch(string(html), -1)
	if len(bound) < 50 {
		t.Errorf("the page binds only %d numbers", len(bound))
	}
	for _, m := range bound {
		if !hasField(reflect.TypeFor[admin.Snapshot](), strings.Split(m[1], ".")) {
			t.Errorf("a snapshot has no %s", m[1])
		}
	}
}

// hasField follows JSON names from type to type.
func hasField(in reflect.Type, names []string) bool {
	for in.Kind() == reflect.Pointer {
		in = in.Elem()
	}
	if len(names) == 0 {
		return in.Kind() != reflect.Struct || reflect.PointerTo(in).Implements(reflect.TypeFor[json.Marshaler]())
	}
	if in.Kind() != reflect.Struct {
		return false
	}
	for f := range in.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == names[0] {
			return hasField(f.Type, names[1:])
		}
	}
	return false
}
