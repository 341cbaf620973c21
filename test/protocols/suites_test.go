package protocols

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-gateway/weir/test/judge"
)

// The SDKs' own suites, as their releases in the registries have them, against Weir with
// the configuration that they name for Centrifugo, translated by weir config import.
// What differs is in docs/reference/centrifuge.md.

// suiteAddr is where the suites look for Centrifugo.
const suiteAddr = "localhost:8000"

const goSuite = "github.com/centrifugal/centrifuge-go@v0.12.0"

func TestSuiteOfTheGoSDK(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "mod", "download", "-json", goSuite)
	cmd.Dir = t.TempDir() // no module's requirements are changed
	out, err := cmd.Output()
	var module struct{ Dir string }
	if err != nil || json.Unmarshal(out, &module) != nil || module.Dir == "" {
		t.Fatalf("download %s: %v: %s", goSuite, err, out)
	}
	s := suiteServer(t, module.Dir, "CENTRIFUGO_CLIENT_INSECURE=true\n")
	dir := copySuite(t, module.Dir, s.Public)
	cmd = exec.Command("go", "test", "-json", "-timeout", "120s", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err = cmd.CombinedOutput()
	passed := bytes.Count(out, []byte(`"Action":"pass"`))
	if err != nil || passed < 50 {
		t.Errorf("%s: %v, %d passed\n%s", goSuite, err, passed, failures(out))
	}
}

// failures are the lines of go test -json that are about tests which failed.
func failures(out []byte) string {
	failed := regexp.MustCompile(`"Action":"fail".*"Test":"([^"]+)"`).FindAllSubmatch(out, -1)
	var b strings.Builder
	for line := range bytes.Lines(out) {
		for _, m := range failed {
			if bytes.Contains(line, []byte(`"Test":"`+string(m[1])+`"`)) && bytes.Contains(line, []byte(`"output"`)) {
				b.Write(line)
			}
		}
	}
	if len(failed) == 0 {
		b.Write(out[max(len(out)-4000, 0):])
	}
	return b.String()
}

// countsFromOne takes the offset of a channel's first message for 1; here the log is the
// namespace's (docs/design/centrifuge-offsets.md).
const countsFromOne = "test_auto_recovery"

func TestSuiteOfThePythonSDK(t *testing.T) {
	t.Parallel()
	judge.Need(t, "protocols")
	source := judge.Path(".cache", "centrifuge-python", "source")
	s := suiteServer(t, source, "")
	dir := copySuite(t, source, s.Public)
	// The other modules have servers of their own.
	cmd := exec.Command("python3", judge.Path("test", "protocols", "suite.py"), "--skip", countsFromOne,
		"tests.test_client", "tests.test_background_tasks", "tests.test_proxy", "tests.test_ready", "tests.test_ssl")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+judge.Path(".cache", "centrifuge-python", "site")+string(os.PathListSeparator)+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if last := lines[len(lines)-1]; err != nil || last != "88 run, 0 failed" {
		text := stderr.String()
		t.Errorf("%v: %q, want 88 tests that pass\n%s", err, last, text[max(len(text)-8000, 0):])
	}
}

// environment finds the variables of Centrifugo in a docker-compose.yml.
var environment = regexp.MustCompile(`(?m)^\s*-?\s*(CENTRIFUGO_[A-Z_]+)\s*[=:]\s*"?([^"\n]*)"?$`)

// suiteServer starts Weir with what the suite in dir has for Centrifugo, and more of it.
func suiteServer(t *testing.T, dir, more string) *judge.Server {
	t.Helper()
	compose, err := os.ReadFile(filepath.Join(dir, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	env := more
	for _, m := range environment.FindAllSubmatch(compose, -1) {
		env += string(m[1]) + "=" + string(m[2]) + "\n"
	}
	name := filepath.Join(t.TempDir(), "centrifugo.env")
	if err := os.WriteFile(name, []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(judge.Binary(t, judge.Race), "config", "import", "centrifugo", name)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("config import: %v\n%s", err, stderr.Bytes())
	}
	imported := obj{}
	if err := yaml.Unmarshal(out, &imported); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"listen", "admin", "broker", "log"} { // the judge's
		delete(imported, key)
	}
	return judge.New(t, judge.Options{Build: judge.Race, Memory: true, Config: imported})
}

// copySuite copies a suite, which then looks for its server at addr.
func copySuite(t *testing.T, from, addr string) string {
	t.Helper()
	dir := t.TempDir()
	err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, rel), bytes.ReplaceAll(b, []byte(suiteAddr), []byte(addr)), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
