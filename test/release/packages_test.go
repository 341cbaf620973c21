package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const root = "../.."

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A content is a file of a package, as nfpm and goreleaser write it.
type content struct {
	Src      string
	Dst      string
	Type     string
	Expand   bool
	Packager string
	FileInfo struct {
		Mode  int
		Group string
	} `yaml:"file_info"`
}

// A description is what nfpm.yaml and an entry of .goreleaser.yaml's nfpms have in common.
type description struct {
	Name, Maintainer, Vendor, Homepage, License, Section, Priority, Release, Description string
	Depends, Recommends                                                                  []string
	Scripts                                                                              map[string]string
	RPM                                                                                  map[string]string
	Contents                                                                             []content
}

// TestGoreleaserAgreesWithNfpm: make release and goreleaser release build the same packages.
func TestGoreleaserAgreesWithNfpm(t *testing.T) {
	var nfpm struct {
		description `yaml:",inline"`
		Overrides   map[string]description
	}
	var goreleaser struct {
		Builds []struct{ Ldflags, Flags, Tags, Env, Goarch []string }
		Nfpms  []struct {
			description  `yaml:",inline"`
			PackageName  string `yaml:"package_name"`
			Dependencies []string
			Formats      []string
		}
	}
	for name, into := range map[string]any{"packaging/nfpm.yaml": &nfpm, ".goreleaser.yaml": &goreleaser} {
		if err := yaml.Unmarshal(read(t, name), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if len(goreleaser.Nfpms) != 2 {
		t.Fatalf("%d packages in .goreleaser.yaml, want a deb and an rpm", len(goreleaser.Nfpms))
	}
	for _, have := range goreleaser.Nfpms {
		kind := strings.Join(have.Formats, " ")
		over, ok := nfpm.Overrides[kind]
		if !ok {
			t.Fatalf("nfpm.yaml has no %q", kind)
		}
		want := nfpm.description
		want.Depends, want.Recommends, want.Scripts = over.Depends, over.Recommends, over.Scripts
		want.Contents = slices.DeleteFunc(slices.Clone(want.Contents), func(c content) bool {
			return c.Packager != "" && c.Packager != kind || c.Dst == "/usr/bin/weir" // goreleaser adds what it built
		})
		for i := range want.Contents {
			want.Contents[i].Packager = ""
		}
		if kind != "rpm" {
			want.RPM = nil
		}
		got := have.description
		got.Name, got.Depends = have.PackageName, have.Dependencies
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the %s of .goreleaser.yaml is\n%+v\nthat of nfpm.yaml\n%+v", kind, got, want)
		}
	}
	script := string(read(t, "packaging/release.sh"))
	for _, b := range goreleaser.Builds {
		if want := "-tags " + strings.Join(b.Tags, ","); len(b.Tags) == 0 || !strings.Contains(script, want) {
			t.Errorf("packaging/release.sh does not build with %s", want)
		}
		if _, version, _ := strings.Cut(b.Env[len(b.Env)-1], "GOTOOLCHAIN="); version == "" || !strings.Contains(script, "\ntoolchain="+version+"\n") {
			t.Errorf("packaging/release.sh does not build with the Go of %v", b.Env)
		}
		for _, text := range append(b.Flags, `-ldflags "`+strings.ReplaceAll(b.Ldflags[0], "v{{ .Version }}", "$VERSION")+`"`) {
			if !strings.Contains(script, text) {
				t.Errorf("packaging/release.sh does not build with %s", text)
			}
		}
		if !strings.Contains(script, "for arch in ${ARCHES:-"+strings.Join(b.Goarch, " ")+"};") {
			t.Errorf("packaging/release.sh does not build for %s alone", b.Goarch)
		}
	}
}

// TestScriptsOfPackagesAreShell: sh accepts the maintainers' scripts, bash the others.
func TestScriptsOfPackagesAreShell(t *testing.T) {
	f := func(shell, pattern string) {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", pattern, names, err)
		}
		for _, name := range names {
			if out, err := exec.Command(shell, "-n", name).CombinedOutput(); err != nil {
				t.Errorf("%s: %s", name, out)
			}
		}
	}
	f("sh", "packaging/deb/p*")
	f("sh", "packaging/rpm/p*")
	f("bash", "packaging/*.sh")
	f("bash", "deploy/*/*.sh")
}
