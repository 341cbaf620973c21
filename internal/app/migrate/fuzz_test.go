package migrate

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
)

// Whatever is read gives a file whose keys Weir knows, and a report; nothing else ends
// it but an error.
func checkTranslation(t *testing.T, kind Kind, file string, data, env []byte) {
	r, err := Translate(kind, file, data, Options{Env: env, EnvName: ".env"})
	if err != nil {
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %q", err)
		}
		return
	}
	name := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(name, r.YAML, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Read(config.Sources{File: name})
	if err != nil {
		t.Fatalf("%v\n%s", err, r.YAML)
	}
	// What names files, or addresses of others, need not be there.
	for _, p := range config.Problems(c.Validate()) {
		if s := p.Error(); !strings.Contains(s, "_file") && !strings.Contains(s, "file:") {
			t.Errorf("config check: %v\n%s", p, r.YAML)
		}
	}
	if r.Report() == "" {
		t.Error("no report")
	}
}

func FuzzCentrifugo(f *testing.F) {
	for i, s := range samples {
		if s.kind == Centrifugo {
			f.Add(uint8(i), readSample(f, s.file))
		}
	}
	f.Add(uint8(0), []byte(`{"client":{"proxy":{"connect":{"enabled":true,"endpoint":"http://u:p@h/"}}},"proxies":[{"name":"default","endpoint":"x"}]}`))
	f.Fuzz(func(t *testing.T, form uint8, data []byte) {
		checkTranslation(t, Centrifugo, []string{"c.json", "c.toml", "c.env", "c.yaml"}[form%4], data, nil)
	})
}

func FuzzMercure(f *testing.F) {
	for _, s := range samples {
		if s.kind == Mercure {
			f.Add(strings.HasSuffix(s.file, ".env"), readSample(f, s.file), readSample(f, "mercure.env"))
		}
	}
	f.Add(false, []byte("http://a, http://b {\nmercure {\npublisher_jwt <<X\n  a\n  X\nissuer a {\npublisher {\njwt b\n}\n}\n}\n}"), []byte("X=1"))
	f.Fuzz(func(t *testing.T, env bool, data, vars []byte) {
		file := "Caddyfile"
		if env {
			file = "m.env"
		}
		checkTranslation(t, Mercure, file, data, vars)
	})
}

func FuzzSoketi(f *testing.F) {
	for _, s := range samples {
		if s.kind == Soketi {
			f.Add(strings.HasSuffix(s.file, ".env"), readSample(f, s.file))
		}
	}
	f.Add(false, []byte(`{"appManager.array.apps.3.id":"x","appManager.array.apps":"[]","adapter.nats.servers":"a b"}`))
	f.Fuzz(func(t *testing.T, env bool, data []byte) {
		file := "s.json"
		if env {
			file = "s.env"
		}
		checkTranslation(t, Soketi, file, data, nil)
	})
}

func FuzzReverb(f *testing.F) {
	f.Add(readSample(f, "reverb.env"))
	f.Add([]byte("REVERB_APP_ACCEPT_CLIENT_EVENTS_FROM=none\nREVERB_APP_ACTIVITY_TIMEOUT=x\nREVERB_SERVER_PORT=a b"))
	f.Add([]byte("REVERB_APP_ID=[]\nREVERB_APP_MAX_CONNECTIONS={}"))
	f.Fuzz(func(t *testing.T, data []byte) { checkTranslation(t, Reverb, "r.env", data, nil) })
}

// Words written with quotes are read back as they were, and blocks nest as they did.
func FuzzCaddyfile(f *testing.F) {
	f.Add(string(readSample(f, "mercure07.Caddyfile")))
	f.Add("a \"b c\" `d` {\n e <<F\n  g\n  F\n}\n")
	f.Add("a \\\n b {\n}\n# c\n{\n}\n")
	f.Fuzz(func(t *testing.T, s string) {
		all, err := parseCaddyfile("Caddyfile", s)
		if err != nil {
			return
		}
		again, err := parseCaddyfile("Caddyfile", writeCaddyfile(all))
		if err != nil {
			t.Fatalf("%v\n%s", err, writeCaddyfile(all))
		}
		forgetLines(all)
		forgetLines(again)
		if !reflect.DeepEqual(all, again) {
			t.Errorf("%q is read back as another", writeCaddyfile(all))
		}
	})
}

func writeCaddyfile(all []*directive) string {
	var b strings.Builder
	for _, d := range all {
		if len(d.words) != 1 || d.words[0] != "" || !d.has {
			for _, w := range d.words {
				b.WriteString(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `" `)
			}
		}
		if d.has {
			b.WriteString("{\n" + writeCaddyfile(d.block) + "}")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func forgetLines(all []*directive) {
	for _, d := range all {
		d.line = 0
		forgetLines(d.block)
	}
}
