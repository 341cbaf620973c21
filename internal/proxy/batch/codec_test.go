package batch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// joinedBody is the body of a call of these requests, which have to be alike.
func joinedBody(t *testing.T, f *Format, bodies ...string) string {
	t.Helper()
	var list []*Body
	key := ""
	for i, text := range bodies {
		b := Parse(f, []byte(text))
		if b.Items == 0 {
			t.Fatalf("%s goes alone", text)
		}
		if k := string(b.appendKey(nil)); i == 0 {
			key = k
		} else if k != key {
			t.Fatalf("%s: %q, and the first one %q", text, k, key)
		}
		list = append(list, &b)
	}
	return string(appendBody(nil, list))
}

func TestBodiesAreJoined(t *testing.T) {
	f := func(f *Format, want string, bodies ...string) {
		t.Helper()
		if got := joinedBody(t, f, bodies...); got != want {
			t.Errorf("%q is joined to\n%s, want\n%s", bodies, got, want)
		}
	}
	f(KServe, `{"instances":[[1, 2],{"a":"x ,]"}, 3]}`, `{"instances": [[1, 2]]}`, "{\n\"instances\" :[ {\"a\":\"x ,]\"}, 3  ] }")
	f(KServe, `{"signature_name":"s d","instances":[1,1e-3]}`, `{"signature_name":"s d", "instances":[1]}`, `{"signature_name" :"s d","instances":[ 1e-3]}`)
	f(Completions, `{"model":"m","prompt":["a","b","c\"]"],"n":2}`, `{"model":"m","prompt":"a","n":2}`, `{"model":"m","prompt":["b","c\"]"],"n":2}`)
	f(Completions, `{"prompt":[[1,2],[3],[4]],"stream":true}`, `{"prompt":[1,2],"stream":true}`, `{"prompt":[[3],[4]],"stream":true}`)
	f(Embeddings, `{"input":["a","b"],"model":"m"}`, `{"input":"a","model":"m"}`, `{"input":"b","model":"m"}`)
}

func TestBodiesThatDifferAreNotJoined(t *testing.T) {
	f := func(f *Format, a, b string) {
		t.Helper()
		x, y := Parse(f, []byte(a)), Parse(f, []byte(b))
		if x.Items == 0 || y.Items == 0 || string(x.appendKey(nil)) == string(y.appendKey(nil)) {
			t.Errorf("%s and %s: %q, %q", a, b, x.appendKey(nil), y.appendKey(nil))
		}
	}
	f(Completions, `{"model":"m","prompt":"a"}`, `{"model":"n","prompt":"a"}`)
	f(Completions, `{"prompt":"a","temperature":1}`, `{"prompt":"a"}`)
	f(Completions, `{"prompt":"a","stop":" x"}`, `{"prompt":"a","stop":"x"}`)
	f(Completions, `{"prompt":"a"}`, `{"prompt":[1]}`)
	f(Completions, `{"prompt":"a","stream":true}`, `{"prompt":"a","stream":false}`)
	f(KServe, `{"instances":[1],"a":1}`, `{"a":1,"instances":[1]}`) // the order decides nothing for a backend, but we compare bytes
}

func TestWhatTwoParsersMightReadInTwoWaysGoesAlone(t *testing.T) {
	f := func(f *Format, body string) {
		t.Helper()
		if b := Parse(f, []byte(body)); b.Items != 0 {
			t.Errorf("%s has %d items: %q", body, b.Items, appendBody(nil, []*Body{&b}))
		}
	}
	for _, body := range []string{
		"", "null", "[]", `{"instances":[1]`, `{"instances":[1]}}`, `{"instances":[1]}{}`, `{"instances":[1],}`, `{"instances":[1,]}`, `{"instances":[]}`,
		`{"instances":1}`, `{"instances":null}`, `{"other":[1]}`, `{}`, `{"instances":[1] "a":2}`, `{instances:[1]}`, `{"instances":[01]}`, `{"instances":[1.]}`,
		`{"instances":["\x"]}`, `{"instances":["\u12g4"]}`, "{\"instances\":[\"a\nb\"]}", "{\"instances\":[\"\xff\"]}", `{"instances":[tru]}`, `{"instances":[-]}`, `{"instances":[1 2]}`,
		`{"instances":[1],"instances":[2]}`, `{"instances":[1],"Instances":[2]}`, `{"INSTANCES":[1]}`, `{"instan\u0063es":[1]}`, `{"instances":[1],"\u0061":2}`,
		`{"instances":[` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `]}`,
	} {
		f(KServe, body)
	}
	for _, body := range []string{
		`{"prompt":"a","n":0}`, `{"prompt":"a","n":1.0}`, `{"prompt":"a","n":"1"}`, `{"prompt":"a","n":1000}`, `{"prompt":"a","n":1,"n":1}`, `{"prompt":"a","N":3}`,
		`{"prompt":"a","stream":1}`, `{"prompt":"a","stream":true,"Stream":false}`, `{"prompt":["a",[1]]}`, `{"prompt":[1,"a"]}`, `{"prompt":[null]}`, `{"prompt":[{}]}`, `{"prompt":{}}`,
		`{"prompt":"a","stream":true,"stream_options":{"include_usage":true}}`,
	} {
		f(Completions, body)
	}
}

// split divides a reply and returns each share's part, or what is wrong with it.
func split(t *testing.T, f *Format, body string, sizes ...int) (parts []string, strays int) {
	t.Helper()
	var r reply
	if err := r.parse(f, []byte(body)); err != nil {
		return []string{err.Error()}, 0
	}
	var shares []share
	at := 0
	for _, n := range sizes {
		shares = append(shares, share{at, n})
		at += n
	}
	faults, strays := r.whole(f, shares)
	for i, s := range shares {
		if faults[i] != nil {
			parts = append(parts, "error: "+faults[i].Error())
			continue
		}
		part, _ := r.appendPart(nil, s)
		parts = append(parts, string(part))
	}
	return parts, strays
}

func TestRepliesAreSplit(t *testing.T) {
	f := func(f *Format, body string, sizes []int, strays int, want ...string) {
		t.Helper()
		got, n := split(t, f, body, sizes...)
		if fmt.Sprint(got) != fmt.Sprint(want) || n != strays {
			t.Errorf("%s:\n%q, %d strays; want\n%q, %d", body, got, n, want, strays)
		}
	}
	f(KServe, `{"predictions": [ [1, 2],3 , "a"], "v":1}`, []int{2, 1}, 0, `{"predictions": [[1, 2],3], "v":1}`, `{"predictions": ["a"], "v":1}`)
	f(KServe, `{"predictions":[1]}`, []int{1, 1}, 0, "error: 1 predictions for 2 instances", "error: 1 predictions for 2 instances")
	f(KServe, `{"predictions":[1,2,3]}`, []int{1, 1}, 0, "error: 3 predictions for 2 instances", "error: 3 predictions for 2 instances")
	f(KServe, `{"error":"x"}`, []int{1, 1}, 0, `error: it has no "predictions"`, `error: it has no "predictions"`)
	f(KServe, `{"predictions":[1,2`, []int{1, 1}, 0, errNoObject.Error())
	f(KServe, `{"predictions":[1,2],"predictions":[3,4]}`, []int{1, 1}, 0, errTwice.Error())
	f(KServe, `{"predictions":[1,2],"Predictions":[3,4]}`, []int{1, 1}, 0, errKey.Error()) // some clients read the last one
	f(KServe, `{"predictions":[1,2],"pr\u0065dictions":[3,4]}`, []int{1, 1}, 0, errKey.Error())
	f(Completions, `{"id":"x","choices":[{"index":1,"text":"b"},{"text":"a","index": 0},{"text":"c","index":2}],"usage":{"total_tokens":9}}`, []int{1, 2}, 0,
		`{"id":"x","choices":[{"text":"a","index": 0}],"usage":null}`, `{"id":"x","choices":[{"index":0,"text":"b"},{"text":"c","index":1}],"usage":null}`)
	f(Completions, `{"usage":{"a":1},"choices":[{"index":0},{"index":7},{"text":"no index"},{"index":-1}]}`, []int{1, 1}, 3, `{"usage":null,"choices":[{"index":0}]}`, "error: index 1 is there 0 times")
	f(Completions, `{"choices":[{"index":0},{"index":0},{"index":1}]}`, []int{1, 1}, 0, "error: index 0 is there 2 times", `{"choices":[{"index":0}]}`)
	f(Completions, `{"choices":[{"index":0,"index":1},{"index":1}]}`, []int{1, 1}, 1, "error: index 0 is there 0 times", `{"choices":[{"index":0}]}`)
	f(Embeddings, `{"data":[{"index":1,"embedding":[0.5]},{"index":0,"embedding":"AAA="}]}`, []int{1, 1}, 0, `{"data":[{"index":0,"embedding":"AAA="}]}`, `{"data":[{"index":0,"embedding":[0.5]}]}`)
}

// FuzzRequestsAreJoinedAndSplitAgain has any two bodies joined as they are, or not: what comes
// together is valid, and has the items of both in their order and nothing else.
func FuzzRequestsAreJoinedAndSplitAgain(f *testing.F) {
	f.Add([]byte(`{"instances":[1,{"a":[]}],"x":"y"}`), []byte(`{"instances":["\u00e9,]"],"x":"y"}`), uint8(0))
	f.Add([]byte(`{"prompt":"a","n":2}`), []byte(`{"prompt":["b","c"],"n":2}`), uint8(1))
	f.Add([]byte(`{"prompt":[1,2]}`), []byte(`{"prompt":[[3]]}`), uint8(1))
	f.Add([]byte(`{"input":"a"}`), []byte(`{"input":" b"}`), uint8(2))
	f.Fuzz(func(t *testing.T, a, b []byte, kind uint8) {
		format := []*Format{KServe, Completions, Embeddings}[kind%3]
		x, y := Parse(format, a), Parse(format, b)
		for i, p := range []Body{x, y} {
			if p.Items > 0 && !json.Valid([][]byte{a, b}[i]) {
				t.Fatalf("%q is not valid and has %d items", [][]byte{a, b}[i], p.Items)
			}
		}
		if x.Items == 0 || y.Items == 0 || string(x.appendKey(nil)) != string(y.appendKey(nil)) {
			return
		}
		both := appendBody(nil, []*Body{&x, &y})
		want := append(itemsOf(t, format, a), itemsOf(t, format, b)...)
		if got := itemsOf(t, format, both); fmt.Sprint(got) != fmt.Sprint(want) || len(got) != x.Items+y.Items {
			t.Fatalf("%q and %q: %q", a, b, both)
		}
		if again := Parse(format, both); again.Items != x.Items+y.Items || string(again.appendKey(nil)) != string(x.appendKey(nil)) {
			t.Fatalf("%q is read as %d items, %q", both, again.Items, again.appendKey(nil))
		}
	})
}

// itemsOf are the items of a request as encoding/json reads them.
func itemsOf(t *testing.T, f *Format, body []byte) (items []any) {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Skip(err) // a number out of range
	}
	switch v := doc[f.in].(type) {
	case string:
		return []any{v}
	case []any:
		if _, number := v[0].(float64); number && f.tokens {
			return []any{v}
		}
		return v
	}
	t.Fatalf("%q has no items", body)
	return nil
}

// FuzzRepliesAreSplit has any document divided: no part panics, each is valid, and the answers
// of all parts are those of the document.
func FuzzRepliesAreSplit(f *testing.F) {
	f.Add([]byte(`{"predictions":[1,[2],{"a":3}],"m":"n"}`), uint8(0), uint8(1))
	f.Add([]byte(`{"id":1,"choices":[{"index":1,"finish_reason":null},{"finish_reason":"stop","index":0,"text":"}"}],"usage":{}}`), uint8(1), uint8(1))
	f.Add([]byte(`{"usage":[],"data":[{"index":0},{"index":2}, {"index":1}]}`), uint8(2), uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, kind, cut uint8) {
		format := []*Format{KServe, Completions, Embeddings}[kind%3]
		var r reply
		if err := r.parse(format, body); err != nil {
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q is not valid", body)
		}
		n := len(r.answers)
		first := int(cut) % (n + 1)
		shares := []share{{0, first}, {first, n - first}}
		faults, _ := r.whole(format, shares)
		for i, s := range shares {
			part, got := r.appendPart(nil, s)
			if !json.Valid(part) && r.list.to > 0 {
				t.Fatalf("part %d of %q is %q", i, body, part)
			}
			if faults[i] == nil && got != s.n {
				t.Fatalf("part %d of %q has %d answers, want %d", i, body, got, s.n)
			}
			if faults[i] == nil {
				var again reply
				if err := again.parse(format, part); err != nil || len(again.answers) != s.n {
					t.Fatalf("part %d of %q is %q: %v", i, body, part, err)
				}
			}
		}
	})
}
