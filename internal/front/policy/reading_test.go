package policy

import (
	"errors"
	"testing"
)

func TestABodyIsOneJSONValue(t *testing.T) {
	f := func(body string, want error) {
		t.Helper()
		if err := oneValue([]byte(body)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", body, err, want)
		}
	}
	f(`{"a":1,"b":{"a":2},"c":[{"a":1},{"a":2}]}`, nil)
	f(`{"a":"a","b":"a"}`, nil)
	f(`{"a":{},"b":[],"c":[[{"c":"c"}],"c"]}`, nil)
	f(` [1, "a", null, true, 1e400] `, nil)
	f(`"a"`, nil)
	f(`{}`, nil)
	f(`{"a":1,"a":2}`, errTwice)
	f(`{"a":1,"\u0061":2}`, errTwice)
	f(`{"a":[{"b":1,"b":2}]}`, errTwice)
	f(`{"a":{"x":1},"b":"x","a":0}`, errTwice)
	f(`{"a":1}{"a":2}`, errMoreJSON)
	f(`1 2`, errMoreJSON)
	f(`{"a":1}x`, errMoreJSON)
	f(`{"a":1`, errNotJSON)
	f(``, errNotJSON)
}
