package config

import (
	"reflect"
	"strings"
	"testing"
)

// Where a comment says bytes, a unit may be written.
func TestByteCountsTakeUnits(t *testing.T) {
	f := func(path, text string, want int64) {
		t.Helper()
		o, err := ParseSet(path + "=" + text)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Load(Sources{Flags: []Override{o}})
		if err != nil {
			t.Errorf("%s=%s: %v", path, text, err)
			return
		}
		if v, ok := valueAt(reflect.ValueOf(c), path); !ok || v.Int() != want {
			t.Errorf("%s=%s gives %v, want %d", path, text, v, want)
		}
		if s := c.Effective(nil); !strings.Contains(s, path[strings.LastIndexByte(path, '.')+1:]+": "+text+"\n") {
			t.Errorf("%s=%s is shown as\n%s", path, text, s)
		}
	}
	f("eventloop.max_queue", "1MiB", 1<<20)
	f("eventloop.notsent_lowat", "64KiB", 64<<10)
	f("eventloop.sockets.receive_buffer", "256KiB", 256<<10)
	f("eventloop.sockets.send_buffer", "2MiB", 2<<20)
	f("push.max_client_message", "128KiB", 128<<10)
	f("downstream.max_line", "16KiB", 16<<10)
	f("downstream.max_head", "48KiB", 48<<10)
}

func TestIntegersWhoseCommentSaysBytesAreSizes(t *testing.T) {
	docs := fieldDocs()
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		kind := deref(k.typ).Kind()
		if kind >= reflect.Int && kind <= reflect.Uint64 && strings.Contains(docs[docKey(k.field)], "in bytes") && !k.size {
			t.Errorf("%s counts bytes and takes no unit", k.path)
		}
	}
}

func TestSocketProblemsNameTheirKey(t *testing.T) {
	_, err := Load(Sources{Env: []string{"WEIR_EVENTLOOP_SOCKETS_KEEP_ALIVE_IDLE=1500ms", "WEIR_EVENTLOOP_SOCKETS_NO_DELAY=false"}})
	if want := "WEIR_EVENTLOOP_SOCKETS_KEEP_ALIVE_IDLE: eventloop: sockets: keep_alive: idle: 1.5s is not whole seconds"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// Where a comment says that -1 means no limit, it may be written, and nowhere else.
func TestASizeMayBeWithoutLimit(t *testing.T) {
	f := func(routes string) (Config, error) {
		t.Helper()
		return Load(Sources{Env: []string{"WEIR_ROUTES=" + routes}})
	}
	c, err := f(`[{"reply":{"status":204},"limits":{"max_body":-1}}]`)
	if err != nil || c.Routes[0].Limits.MaxBody != -1 {
		t.Errorf("%+v %v", c.Routes, err)
	}
	if !strings.Contains(c.Effective(nil), "max_body: -1\n") {
		t.Errorf("it is shown as\n%s", c.Effective(nil))
	}
	for _, routes := range []string{`[{"limits":{"max_body":-2}}]`, `[{"openapi":{"max_body":-1}}]`} {
		if _, err := f(routes); err == nil || !strings.Contains(err.Error(), "is not a size") {
			t.Errorf("%s: %v", routes, err)
		}
	}
}
