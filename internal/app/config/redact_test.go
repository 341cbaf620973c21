package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// looksSecret is this test's own idea of a secret's name, apart from the program's list.
var (
	looksSecret = regexp.MustCompile(`(?i)(secret|token|password|passwd|passphrase|signature|private_?key|api_?key)`)
	notSecret   = regexp.MustCompile(`_file$|^cookie|_sample$|_cookie$`)
)

// A planter fills a configuration with canaries wherever a secret may stand.
type planter struct {
	n       int
	planted []string // the path of each
}

func (p *planter) canary(path string) string {
	p.n++
	p.planted = append(p.planted, path)
	return fmt.Sprintf("canary%04dx", p.n)
}

func (p *planter) fill(v reflect.Value, path string, key string) {
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer:
		if t.Elem().Kind() == reflect.Struct {
			v.Set(reflect.New(t.Elem()))
			p.fill(v.Elem(), path, key)
		}
	case t.Kind() == reflect.String:
		switch secret := t.Name() == "Secret" || looksSecret.MatchString(key) && !notSecret.MatchString(key); {
		case secret:
			v.SetString(p.canary(path))
		case strings.HasSuffix(path, "webhooks[].url"), strings.Contains(path, "centrifuge") && strings.HasSuffix(path, ".endpoint"):
			v.SetString("https://h/services/" + p.canary(path))
		case !isText(t):
			v.SetString("nats://u:" + p.canary(path) + "@h:4222/x?q=1&X-Amz-Signature=" + p.canary(path) + " password=" + p.canary(path))
		}
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.String:
		v.Set(reflect.MakeMap(t))
		set := func(name string) {
			v.SetMapIndex(reflect.ValueOf(name).Convert(t.Key()), reflect.ValueOf(p.canary(path+"."+name)).Convert(t.Elem()))
		}
		for _, name := range []string{"Authorization", "Set-Cookie", "X-API-Key", "client_secret", "X-Amz-Signature"} {
			set(name)
		}
		if strings.Contains(path, "headers") && !strings.Contains(path, "response_headers") && !strings.Contains(path, "reply.headers") {
			set("X-Anything")
		}
	case shapeOf(t) == mapping && shapeOf(deref(t.Elem())) == section:
		e := reflect.New(t.Elem()).Elem()
		p.fill(e, path+".x", "")
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(reflect.ValueOf("x").Convert(t.Key()), e)
	case t.Kind() == reflect.Slice && (shapeOf(deref(t.Elem())) == section || t.Elem().Kind() == reflect.String):
		v.Set(reflect.MakeSlice(t, 1, 1))
		p.fill(v.Index(0), path+"[]", key)
	case shapeOf(t) == section:
		for _, f := range fieldsOf(t) {
			p.fill(v.FieldByIndex(f.index), join(path, f.key), f.key)
		}
	}
}

func TestNoSecretOfAnyFieldIsShown(t *testing.T) {
	var c Config
	p := &planter{}
	p.fill(reflect.ValueOf(&c).Elem(), "", "")
	if p.n < 400 {
		t.Fatalf("only %d places were found", p.n)
	}
	shown := c.Effective(nil)
	for i, path := range p.planted {
		if strings.Contains(shown, fmt.Sprintf("canary%04dx", i+1)) {
			t.Errorf("%s is shown", path)
		}
	}
	// The file that `weir config default` writes has to be read back: it shows all.
	if file := c.File(); strings.Count(file, "canary") < p.n {
		t.Errorf("a file has %d of %d", strings.Count(file, "canary"), p.n)
	}
	for _, path := range []string{"routes[].request_headers.set.X-Anything", "telemetry.headers.X-Anything", "broker.nats.url", "auth.api_keys[].key"} {
		if !strings.Contains(strings.Join(p.planted, " "), path) {
			t.Errorf("%s was not looked at", path)
		}
	}
}

func TestErrorsOfAConfigurationShowNoSecrets(t *testing.T) {
	for _, text := range []string{
		"auth: {hmac_secret: [canary]}", "auth: {hmac_secret: {a: canary}}", "admin: {token: canary}", "broker: {nats: {url: {a: canary}}}",
		"telemetry: {headers: canary}", "telemetry: {headers: [canary]}", "push: {heartbeat: 'nats://u:canary@h'}", "broker: {kind: nats, nats: {url: 'nats://u:canary/x@h'}}",
		"clusters: [{name: a, peers: [{address: 'http://u:canary@h'}]}]", "routes: [{cluster: a, request_headers: {set: {Authorization: \"canary\\n\"}}}]", "auth: {jwks_url: 'ftp://u:canary@h'}",
	} {
		file := filepath.Join(t.TempDir(), "weir.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(Sources{File: file})
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
