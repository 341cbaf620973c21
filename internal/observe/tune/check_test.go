package tune

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
)

// A fixture is a machine of files; reading one of forbidden is refused.
type fixture struct {
	fstest.MapFS
	forbidden []string
}

func (f fixture) Open(name string) (fs.File, error) {
	if slices.Contains(f.forbidden, name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return f.MapFS.Open(name)
}

func (f fixture) ReadFile(name string) ([]byte, error) {
	if _, err := f.Open(name); err != nil {
		return nil, err
	}
	return f.MapFS.ReadFile(name)
}

// A scene is one fixture of a knob, by its name: good, bad, absent or forbidden.
type scene struct {
	want    string
	machine *Machine
	profile Profile
}

// scenes reads testdata/knobs. The comment of the archive has "want SCENE: STATE VALUE"
// and what is not a file: profile, listen, subject (the files that are missing when absent),
// rule SCENE and card SCENE. Absent and forbidden are the good machine without, or
// without the right to, the subject.
func scenes(t *testing.T, c *Check) map[string]scene {
	t.Helper()
	base, err := txtar.ParseFile("testdata/machine.txtar")
	if err != nil {
		t.Fatal(err)
	}
	a, err := txtar.ParseFile(filepath.Join("testdata/knobs", c.Name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for line := range strings.Lines(string(a.Comment)) {
		key, value, _ := strings.Cut(line, ":")
		said[key] = strings.TrimSpace(value)
	}
	subject := strings.Fields(said["subject"])
	if len(subject) == 0 && c.evaluate != nil {
		subject = []string{c.file()}
	}
	all := map[string]scene{}
	for _, name := range []string{"good", "bad", "absent", "forbidden"} {
		from := name
		if name == "absent" || name == "forbidden" {
			from = "good"
		}
		files := fstest.MapFS{}
		for _, f := range base.Files {
			files[f.Name] = &fstest.MapFile{Data: f.Data}
		}
		for _, f := range a.Files {
			if rest, ok := strings.CutPrefix(f.Name, from+"/"); ok {
				files[rest] = &fstest.MapFile{Data: f.Data}
			}
		}
		fx := fixture{MapFS: files}
		for _, s := range subject {
			s = strings.TrimPrefix(s, "/")
			switch name {
			case "absent":
				delete(files, s)
			case "forbidden":
				fx.forbidden = append(fx.forbidden, s)
			}
		}
		m := &Machine{FS: fx}
		if said["listen"] != "" {
			m.Listen, err = parsePorts(said["listen"])
			m.Notrack = fakeRule(said["rule "+name])
		}
		if said["link"] != "" {
			var l Link
			l, err = ParseLink(said["link"], testDSCP())
			m.Links, m.Queues = []Link{l}, fakeQueue(said["queue "+name])
		}
		if spec := said["card "+name]; spec != "" {
			m.Card = fakeCard(spec)
		}
		s := scene{want: cmp.Or(said["want "+name], name), machine: m, profile: Profile(cmp.Or(said["profile"], "gateway"))}
		all[name] = s
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

type fakeRule string

func (r fakeRule) Load(string) (string, error) { return string(r), nil }
func (r fakeRule) Save(string, string) error   { panic("a check changes nothing") }

// A fakeQueue answers as its text says.
type fakeQueue string

func (q fakeQueue) Load(string) (string, error) {
	switch q {
	case "absent":
		return "", fs.ErrNotExist
	case "forbidden":
		return "", fs.ErrPermission
	}
	return string(q), nil
}

func (q fakeQueue) Save(string, string) error { panic("a check changes nothing") }

// A fakeCard answers as its text says.
type fakeCard string

func (c fakeCard) fail() error {
	switch c {
	case "unsupported":
		return fmt.Errorf("eth0: %w", ErrUnsupported)
	case "forbidden":
		return fs.ErrPermission
	}
	return nil
}

func (c fakeCard) Channels(string) (ch Channels, err error) {
	_, _ = fmt.Sscanf(string(c), "combined %d of %d", &ch.Combined, &ch.MaxCombined)
	return ch, c.fail()
}

func (c fakeCard) Rings(string) (r Rings, err error) {
	_, _ = fmt.Sscanf(string(c), "ring %d of %d", &r.RX, &r.MaxRX)
	return r, c.fail()
}

func (c fakeCard) Coalesce(string) (co Coalesce, err error) {
	_, _ = fmt.Sscanf(string(c), "usecs %d", &co.RXMicros)
	co.AdaptiveRX = strings.HasSuffix(string(c), "adaptive")
	return co, c.fail()
}

func (c fakeCard) Features(string) (map[string]Feature, error) {
	all := map[string]Feature{}
	for _, w := range strings.Fields(string(c)) {
		if name := strings.TrimLeft(w, "+-"); name != w {
			all[name] = Feature{Possible: true, Active: w[0] == '+'}
		}
	}
	return all, c.fail()
}

func TestEveryCheckOnAGoodABadAnAbsentAndAForbiddenKnob(t *testing.T) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			for name, s := range scenes(t, &c) {
				f := c.run(s.machine, s.profile)
				got := string(f.State)
				if f.Want != "" {
					got += " " + f.Want
				}
				if got != s.want {
					t.Errorf("%s: %q, want %q; now %q, because %s", name, got, s.want, f.Now, f.Why)
				}
				if f.Why == "" || f.Undo == "" {
					t.Errorf("%s: no reason or no way back: %+v", name, f)
				}
				if (f.State == Change) != (len(f.Steps)+len(f.Config) > 0) {
					t.Errorf("%s: state %s with %d steps and %d files", name, f.State, len(f.Steps), len(f.Config))
				}
				if f.State == Change && len(f.Evidence) == 0 {
					t.Errorf("%s: a change without evidence", name)
				}
			}
		})
	}
}

// Every fixture belongs to a check, every check is documented, and no name occurs twice.
func TestChecksAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Name] {
			t.Errorf("two checks are called %s", c.Name)
		}
		seen[c.Name] = true
		if c.Threshold == "" || c.Source == "" || c.Since == "" || c.Risk == "" || c.Area == "" {
			t.Errorf("%s lacks documentation: %+v", c.Name, c)
		}
		if (c.Worth.None == "") == (c.Worth.Page == "") {
			t.Errorf("%s: what it is worth is neither measured nor explained, or both: %+v", c.Name, c.Worth)
		}
		if (c.evaluate == nil) == (c.probe == nil) {
			t.Errorf("%s needs judge or probe", c.Name)
		}
	}
	files, err := os.ReadDir("testdata/knobs")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[strings.TrimSuffix(f.Name(), ".txtar")] {
			t.Errorf("testdata/knobs/%s belongs to no check", f.Name())
		}
	}
	if len(seen) < 35 {
		t.Errorf("%d checks", len(seen))
	}
}

func TestAHostsSettingInANamespaceIsNotCalledMissing(t *testing.T) {
	m := &Machine{FS: fstest.MapFS{"proc/sys/net/core/somaxconn": {Data: []byte("4096\n")}}}
	r, err := Run(m, Gateway, "net.core.busy_poll", "tcp_migrate_req")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		if host := f.Knob == "net.core.busy_poll"; f.State != Absent || strings.Contains(f.Why, "on the host") != host {
			t.Errorf("%+v", f)
		}
	}
	if r.Status() != StatusOK {
		t.Errorf("what a kernel does not have is not a finding: status %d", r.Status())
	}
}

func TestUnknownCheckIsNamed(t *testing.T) {
	if _, err := Run(&Machine{FS: fstest.MapFS{}}, Gateway, "somaxcon"); err == nil || !strings.Contains(err.Error(), `"somaxcon"`) {
		t.Errorf("%v", err)
	}
}

// On whatever machine this runs, every check ends in a state and changes nothing.
func TestThisMachine(t *testing.T) {
	m := Local("/")
	m.Listen = []int{8000}
	for _, p := range Profiles() {
		r, err := Run(m, p)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, c := range slices.Sorted(maps.Keys(r.Counts)) {
			n += r.Counts[c]
		}
		if n != len(Checks()) || len(r.Findings) != n {
			t.Errorf("%s: %d findings for %d checks", p, n, len(Checks()))
		}
		for _, f := range r.Findings {
			t.Logf("%s %s %s %q → %q: %s", p, f.State, f.Knob, f.Now, f.Want, f.Why)
		}
	}
}
