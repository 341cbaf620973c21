package deploy

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// TestComposeFilesAreValid: the reference loader checks them against compose's schema, and
// every file that they mount is there.
func TestComposeFilesAreValid(t *testing.T) {
	env := types.Mapping{"WEIR_API_KEY": "0123456789abcdef", "WEIR_ADMIN_TOKEN": "0123456789abcdef", "WEIR_ADMIN_READ_TOKEN": "fedcba9876543210", "GRAFANA_PASSWORD": "x", "WEIR_CERTS": t.TempDir()}
	f := func(env types.Mapping, names ...string) (*types.Project, error) {
		t.Helper()
		details := types.ConfigDetails{WorkingDir: "../../deploy/compose", Environment: env}
		for _, name := range names {
			details.ConfigFiles = append(details.ConfigFiles, types.ConfigFile{Filename: filepath.Join(details.WorkingDir, name)})
		}
		p, err := loader.LoadWithContext(context.Background(), details)
		if err != nil {
			return nil, err
		}
		for _, s := range p.Services {
			for _, v := range s.Volumes {
				if v.Type != types.VolumeTypeBind {
					continue
				}
				if _, err := os.Stat(v.Source); err != nil {
					t.Errorf("%s mounts %v", s.Name, err)
				}
			}
			if s.Build != nil {
				if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
					t.Errorf("%s is built from %v", s.Name, err)
				}
			}
			if s.Image == "weir" && (!s.ReadOnly || len(s.CapDrop) != 1 || s.CapDrop[0] != "ALL") {
				t.Errorf("%s has rights that it does not need: %+v", s.Name, s)
			}
		}
		return p, nil
	}
	for _, names := range [][]string{{"one.yaml"}, {"three.yaml"}, {"one.yaml", "monitoring.yaml"}, {"one.yaml", "http3.yaml"}} {
		p, err := f(env, names...)
		if err != nil {
			t.Errorf("%v: %v", names, err)
			continue
		}
		want := map[string]int{"one.yaml": 1, "three.yaml": 6, "one.yaml monitoring.yaml": 3, "one.yaml http3.yaml": 1}[strings.Join(names, " ")]
		if len(p.Services) != want {
			t.Errorf("%v: %d services, want %d", names, len(p.Services), want)
		}
		if slices.Contains(names, "http3.yaml") {
			var ports []string
			for _, port := range p.Services["weir"].Ports {
				ports = append(ports, port.Published+"/"+port.Protocol)
			}
			if slices.Sort(ports); !slices.Equal(ports, []string{"8443/tcp", "8443/udp"}) {
				t.Errorf("%v: ports %q", names, ports)
			}
		}
	}
	if _, err := f(types.Mapping{}, "one.yaml"); err == nil || !strings.Contains(err.Error(), "WEIR_API_KEY") {
		t.Errorf("without a key: %v", err)
	}
}
