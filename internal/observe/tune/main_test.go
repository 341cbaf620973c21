package tune

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// The test binary is also the program that is killed, and the one that runs in a network
// namespace of its own.
func TestMain(m *testing.M) {
	if job := os.Getenv("TUNE_TEST_JOB"); job != "" {
		os.Exit(runJob(job))
	}
	os.Exit(m.Run())
}

// inNamespace runs the calling test again in a network namespace of its own, as a child.
// It reports whether this is the child. Without the right to make one the test is skipped.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv("TUNE_TEST_NAMESPACE") == t.Name() {
		if (&Machine{FS: os.DirFS("/")}).nested() {
			return true
		}
		t.Fatal("this is not a network namespace of its own: nothing may be changed here")
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "TUNE_TEST_NAMESPACE="+t.Name(), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !asExit(err, &exit) {
		t.Skipf("no network namespace of its own: %v", err)
	}
	if err != nil {
		t.Errorf("in the namespace: %v\n%s", err, out)
	}
	return false
}
