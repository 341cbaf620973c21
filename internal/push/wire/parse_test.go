package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestParseBody(t *testing.T) {
	f := func(body, channel, data string) {
		t.Helper()
		in, bad := ParseBody([]byte(body))
		if bad != nil {
			t.Errorf("%s: %v", body, bad)
			return
		}
		if in.Channel != channel || string(in.Data) != data {
			t.Errorf("%s: channel %q, data %s; want %q, %s", body, in.Channel, in.Data, channel, data)
		}
	}
	f(`{"channel":"a","data":1}`, "a", "1")
	f(" {\n\"data\" : { \"x\" : [ 1 , 2 ] }\t,\r\n\"channel\" : \"a\" } ", "a", `{ "x" : [ 1 , 2 ] }`)
	f(`{"channel":"caf\u00e9","data":"\ud83d\ude00"}`, "café", `"\ud83d\ude00"`)
	f(`{"ch\u0061nnel":"a","data":null}`, "a", "null")
	f(`{"channel":"a","data":{}}`, "a", "{}")
	f(`{"channel":"a","data":[]}`, "a", "[]")
	f(`{"channel":"a","data":-0.5e+10}`, "a", "-0.5e+10")
	f(`{"channel":"a","data":"}\"]"}`, "a", `"}\"]"`)
	f(`{"channel":"a","data":`+strings.Repeat("[", maxNesting)+strings.Repeat("]", maxNesting)+`}`, "a",
		strings.Repeat("[", maxNesting)+strings.Repeat("]", maxNesting))

	no := func(body, says string) {
		t.Helper()
		if in, bad := ParseBody([]byte(body)); bad == nil {
			t.Errorf("%s: taken for %+v", body, in)
		} else if !strings.Contains(bad.Message, says) {
			t.Errorf("%s: %q does not say %q", body, bad.Message, says)
		}
	}
	no(``, "an object")
	no(`[]`, "an object")
	no(`{`, "a field name")
	no(`{"channel":"a","data":1`, "ends")
	no(`{"channel":"a","data":1,}`, "a field name")
	no(`{"channel":"a" "data":1}`, "a comma")
	no(`{"channel" "a"}`, "a colon")
	no(`{"channel":null,"data":1}`, "text")
	no(`{"channel":"a","channel":"b","data":1}`, "duplicate")
	no(`{"Channel":"a","data":1}`, "unknown field")
	no(`{"channel":"a","data":tru}`, "a value")
	no(`{"channel":"a","data":+1}`, "a value")
	no(`{"channel":"a","data":1.}`, "a digit")
	no(`{"channel":"a","data":1e}`, "a digit")
	no(`{"channel":"a","data":-}`, "a digit")
	no(`{"channel":"a","data":"\x"}`, "an escape")
	no(`{"channel":"a","data":"\u12g4"}`, "an escape")
	no("{\"channel\":\"a\",\"data\":\"\n\"}", "part of a string")
	no(`{"channel":"a","data":"x}`, "the end of a string")
	no(`{"channel":"a","data":{"x"}}`, "a colon")
	no(`{"channel":"a","data":[1}}`, "a comma or ]")
	no(`{"channels":["a",1],"data":1}`, "text")
	no(`{"channels":"a","data":1}`, "a list")
	no(`{"channel":"a","data":`+strings.Repeat("[", maxNesting+1), "nested deeper")
	no("{\"channel\":\"a\",\"data\":\"\xc3\"}", "UTF-8")
	no(`{"channel":"a"}`, `"data" is missing`)
	no(`{"channel":"a","data":1} {}`, "follows")
	no(`{"channel":"a","data":1,"text":"x"}`, "both")
	no(`{"channel":"a","text":"x","data":1}`, "both")
	no(`{"channel":"a","text":1}`, "text")
	no(`{"channel":"a","data":1,"private":1}`, "true or false")
	no(`{"channel":"a","data":1,"private":tru}`, "true or false")
	no(`{"channel":"a","data":1,"id":null}`, "text")
	no(`{"channel":"a","data":1,"tags":[]}`, "an object")
	no(`{"channel":"a","data":1,"tags":{"a":1}}`, "a tag's text")
	no(`{"channel":"a","data":1,"tags":{"a":"b","a":"c"}}`, "duplicate")
	no(`{"channel":"a","data":1,"tags":{"a":"b"`, "a comma")
	no(`{"channel":"a","data":1,"tags":{`+strings.Repeat(`"t":"x",`, hub.MaxTags)+`"x":"y"}}`, "duplicate")
}

func TestAttributesOfACall(t *testing.T) {
	take := func(body string) (*Call, *Error) {
		in, bad := ParseBody([]byte(body))
		if bad != nil {
			return nil, bad
		}
		c := &Call{Channels: []string{"a"}}
		return c, c.copyBody(in)
	}
	f := func(body, data string, want *hub.Attributes) {
		t.Helper()
		c, bad := take(body)
		if bad != nil {
			t.Errorf("%s: %v", body, bad)
		} else if got := c.Publication; string(got.Data) != data || !reflect.DeepEqual(got.Attributes, want) {
			t.Errorf("%s: data %s, attributes %+v", body, got.Data, got.Attributes)
		}
	}
	f(`{"channel":"a","data":1}`, "1", nil)
	f(`{"channel":"a","data":1,"id":"","event":"","private":false,"tags":{}}`, "1", nil)
	f(`{"channel":"a","text":""}`, "", &hub.Attributes{Payload: hub.Text})
	f(`{"channel":"a","text":"one\ntwo"}`, "one\ntwo", &hub.Attributes{Payload: hub.Text})
	f(`{"channel":"a","data":1,"id":"urn:x","event":"tick","private":true}`, "1", &hub.Attributes{ID: "urn:x", Event: "tick", Private: true})
	f(`{"channel":"a","data":1, "tags" : { "a" : "b" , "c":"d" } }`, "1", &hub.Attributes{Tags: map[string]string{"a": "b", "c": "d"}})

	no := func(body, says string) {
		t.Helper()
		if c, bad := take(body); bad == nil {
			t.Errorf("%s: taken for %+v", body, c.Publication)
		} else if !strings.Contains(bad.Message, says) {
			t.Errorf("%s: %q does not say %q", body, bad.Message, says)
		}
	}
	no(`{"channel":"a","data":1,"id":"a\nb"}`, "id: ")
	no(`{"channel":"a","data":1,"event":"a\u0000"}`, "event: ")
	no(`{"channel":"a","data":1,"event":"`+strings.Repeat("e", 256)+`"}`, "event: ")
	var many []string
	for i := range hub.MaxTags + 1 {
		many = append(many, fmt.Sprintf(`"%d":""`, i))
	}
	no(`{"channel":"a","data":1,"tags":{`+strings.Join(many, ",")+`}}`, "more than")
}

// stdBody is what encoding/json makes of a body.
func stdBody(body []byte) (*Body, bool) {
	var v struct {
		Channel        *string           `json:"channel"`
		Channels       []string          `json:"channels"`
		Data           json.RawMessage   `json:"data"`
		Text           *string           `json:"text"`
		Key            string            `json:"key"`
		IdempotencyKey string            `json:"idempotency_key"`
		ID             string            `json:"id"`
		Event          string            `json:"event"`
		Private        bool              `json:"private"`
		Tags           map[string]string `json:"tags"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if d.Decode(&v) != nil || (v.Data == nil) == (v.Text == nil) {
		return nil, false
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, false
	}
	in := &Body{Channels: v.Channels, Data: v.Data, Key: v.Key, IdempotencyKey: v.IdempotencyKey, ID: v.ID, Event: v.Event, Private: v.Private, Tags: v.Tags}
	if v.Text != nil {
		in.Data, in.IsText = []byte(*v.Text), true
	}
	if v.Channel != nil {
		in.Channel = *v.Channel
	}
	return in, true
}

// stricter reports whether body has what only ParseBody refuses: a field or a tag
// twice or in other case, null for text, or too much nesting or too many tags.
func stricter(body []byte) bool {
	d := json.NewDecoder(bytes.NewReader(body))
	depth, seen := 0, map[string]bool{}
	key, list, tags := "", false, false
	tag, named := "", map[string]bool{}
	for {
		tok, err := d.Token()
		if err != nil {
			return false
		}
		switch v := tok.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
				list = v == '[' && depth == 2 && key == "channels"
				tags = v == '{' && depth == 2 && key == "tags"
			} else {
				depth--
			}
			if depth > maxNesting {
				return true
			}
			if depth == 1 {
				key = ""
			}
		case nil:
			if depth == 1 && key != "" && key != "data" || depth == 2 && (list || tags) {
				return true
			}
			if depth == 1 {
				key = ""
			}
		default:
			if depth == 2 && tags {
				if tag != "" {
					tag = "" // that was its text
					continue
				}
				name, _ := v.(string)
				if tag = "." + name; named[name] || len(named) == hub.MaxTags {
					return true
				}
				named[name] = true
			}
			if depth != 1 {
				continue
			}
			if key != "" {
				key = "" // that was its value
				continue
			}
			key, _ = v.(string)
			switch key {
			case "channel", "channels", "data", "text", "key", "idempotency_key", "id", "event", "private", "tags":
				if seen[key] {
					return true
				}
				seen[key] = true
			default:
				return true
			}
		}
	}
}

func FuzzParseBody(f *testing.F) {
	for _, seed := range []string{
		`{"channel":"a","data":1}`, `{"channels":["a","b"],"data":{"x":[1,2.5e-3,null,true,"\u00e9\n"]},"key":"k","idempotency_key":"i"}`,
		`{"channel":"a","data":1,"data":2}`, `{"Data":1}`, `{"channel":null,"data":null}`, `{"channels":[null],"data":0}`, `{"data":"\ud800"}`,
		` { "data" : [ ] } `, `{"data":-0}`, `{"data":01}`, `{"data":1}}`, `{"data":"` + "\x7f" + `"}`, `{"":1,"data":2}`, `{"channels":null,"data":1}`,
		"{\"data\":\"\xff\"}", "\ufeff{\"data\":1}",
		`{"channel":"a","text":"x","id":"i","event":"e","private":true,"tags":{"a":"b","c":""}}`, `{"text":1}`, `{"text":"a","data":1}`, `{"data":1,"tags":{"a":null}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		in, bad := ParseBody(body)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		want, ok := stdBody(body)
		switch {
		case bad == nil && !ok:
			t.Fatalf("%q is taken; encoding/json refuses it", body)
		case bad == nil:
			if in.Channel != want.Channel || in.Key != want.Key || in.IdempotencyKey != want.IdempotencyKey ||
				in.ID != want.ID || in.Event != want.Event || in.Private != want.Private || !maps.Equal(in.Tags, want.Tags) || in.IsText != want.IsText ||
				!bytes.Equal(in.Data, want.Data) || strings.Join(in.Channels, "\x00") != strings.Join(want.Channels, "\x00") && len(want.Channels) <= MaxBroadcast {
				t.Fatalf("%q is read as %+v; encoding/json reads %+v", body, in, want)
			}
		case ok && !stricter(body) && !strings.Contains(bad.Message, "UTF-8"):
			t.Fatalf("%q is refused: %s; encoding/json takes it", body, bad.Message)
		}
	})
}

func BenchmarkParsePublish(b *testing.B) {
	body := []byte(`{"channel":"market:AAPL","data":{"symbol":"AAPL","price":187.25,"volume":1200,"time":1700000000000},"idempotency_key":"0123456789"}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, bad := ParseBody(body); bad != nil {
			b.Fatal(bad)
		}
	}
}
