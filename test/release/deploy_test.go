package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }

// TestConfigurationsThatAreShippedAreValid: of the packages, and of the image with a key.
func TestConfigurationsThatAreShippedAreValid(t *testing.T) {
	weir := judge.Binary(t, judge.Plain)
	f := func(name string, env ...string) {
		t.Helper()
		cmd := exec.Command(weir, "config", "check", "--config", filepath.Join(root, name))
		cmd.Env = append(environment(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	f("packaging/weir.yaml")
	f("deploy/docker/weir.yaml", `WEIR_AUTH_API_KEYS=[{"name":"backend","key":"0123456789abcdef"}]`)
}

// TestThreeNodesOnOneMachine plays the failure that deploy/cluster/three.sh plays.
func TestThreeNodesOnOneMachine(t *testing.T) {
	_, text, _ := strings.Cut(judge.FreeAddr(t), ":")
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	// The script uses the ports from it to 1,022 after it.
	port = min(port, 60000)
	cmd := exec.Command("bash", filepath.Join(root, "deploy/cluster/three.sh"), "check")
	cmd.Env = append(environment(), "WEIR="+judge.Binary(t, judge.Plain), "PORT="+strconv.Itoa(port), "DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "ok: ") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
}
