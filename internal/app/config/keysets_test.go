package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/auth"
)

const setSecret = "0123456789abcdef0123456789abcdef"

func TestProtocolsNameKeySetsThatExist(t *testing.T) {
	f := func(text, want, hint string) {
		t.Helper()
		_, err := Load(Sources{File: file(t, text)})
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(HintOf(err), hint)):
			t.Errorf("%s: %v, hint %q; want %q, %q", text, err, HintOf(err), want, hint)
		}
	}
	const sets = "key_sets: {main: {hmac_secret: " + setSecret + "}}\n"
	f(sets, "", "")
	f(sets+"centrifuge: {enabled: true, keys: main, subscription_keys: main}\n", "", "")
	f(sets+"mercure: {enabled: true, publisher_keys: main, issuers: [{issuer: a, keys: main}]}\n", "", "")
	f(sets+"centrifuge: {enabled: true, keys: mian}\n", `centrifuge.keys: there is no key set "mian"`, "did you mean main?")
	f(sets+"mercure: {enabled: true, subscriber_keys: hub}\n", `mercure.subscriber_keys: there is no key set "hub"`, "key_sets: {hub:")
	f(sets+"mercure: {enabled: true, issuers: [{issuer: a}]}\n", "issuers[0].keys", "")
	f("key_sets: {main: {}}\n", "key_sets.main: there are no keys", "hmac_secret")
	f("key_sets: {main: {hmac_secret: short}}\n", "key_sets.main: hmac_secret: ", "")
	f("key_sets: {main: {hmac_secret: "+setSecret+", leeway: 1h}}\n", "key_sets.main: leeway: 1h", "")
	f("centrifuge: {token: {hmac_secret: "+setSecret+"}}\n", "unknown key", "centrifuge.keys: NAME")
	f("listen: :8000\n"+sets, "", "") // there are keys
}

// The configuration has one form of keys, in auth and in key_sets, and no third place.
func TestKeysHaveOneForm(t *testing.T) {
	for _, k := range keysOf(reflect.TypeFor[Config]()) {
		if k.key == "hmac_secret" && k.path != "auth.hmac_secret" && k.path != "key_sets.*.hmac_secret" {
			t.Errorf("%s: name a key set instead", k.path)
		}
		if k.key == "jwks_url" && k.path != "auth.jwks_url" && k.path != "key_sets.*.jwks_url" {
			t.Errorf("%s: name a key set instead", k.path)
		}
	}
}

func TestSecretsOfKeySetsAreNotShown(t *testing.T) {
	c, origins, err := Read(Sources{File: file(t, "key_sets: {main: {hmac_secret: "+setSecret+", hmac_previous_secret: x"+setSecret+"}}\nmercure: {publisher_keys: main}\n")})
	if err != nil || string(c.KeySets["main"].HMACSecret) != setSecret {
		t.Fatalf("%q, %v", string(c.KeySets["main"].HMACSecret), err)
	}
	s := c.Effective(origins)
	if strings.Contains(s, setSecret) || !strings.Contains(s, "publisher_keys: main") {
		t.Errorf("effective:\n%s", s)
	}
	changed := c
	changed.KeySets = map[string]auth.KeySet{"main": {HMACSecret: "another-secret-of-thirty-two-bytes"}}
	for _, ch := range Diff(c, changed) {
		if strings.Contains(ch.Old+ch.New, "secret-of") || strings.Contains(ch.Old+ch.New, setSecret) {
			t.Errorf("diff: %+v", ch)
		}
	}
	_, err = Load(Sources{File: file(t, "key_sets: {main: {hmac_secret: [canary-of-a-list]}}\n")})
	if _, ok := errors.AsType[*KeyError](err); err == nil || ok && strings.Contains(err.Error(), "canary") {
		t.Errorf("a list for a secret: %v", err)
	}
}
