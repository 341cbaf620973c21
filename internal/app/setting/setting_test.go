package setting

import (
	"encoding/json"
	"testing"
)

func TestASwitchIsOnUnlessSetToFalse(t *testing.T) {
	type file struct {
		A Switch `json:"a"`
	}
	f := func(text string, on, valid bool) {
		t.Helper()
		var v file
		if err := json.Unmarshal([]byte(text), &v); (err == nil) != valid {
			t.Fatalf("%s: %v", text, err)
		} else if !valid {
			return
		}
		if v.A.On() != on || v.A != Of(on) {
			t.Errorf("%s: on is %v", text, v.A.On())
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var back file
		if err := json.Unmarshal(b, &back); err != nil || back != v {
			t.Errorf("%s: %s reads back as %v, %v", text, b, back, err)
		}
	}
	f(`{}`, true, true)
	f(`{"a":null}`, true, true)
	f(`{"a":true}`, true, true)
	f(`{"a":false}`, false, true)
	f(`{"a":"false"}`, false, false)
	f(`{"a":0}`, false, false)
}
