//go:build linux

package sys

import (
	"os/exec"
	"strings"
	"testing"
)

func TestAProcessStartsOnItsCPUs(t *testing.T) {
	all, err := CPUs()
	if err != nil || len(all) < 2 {
		t.Skipf("CPUs %v: %v", all, err)
	}
	var said []byte
	err = StartOn(all[1:2], func() (err error) {
		said, err = exec.Command("sh", "-c", "grep Cpus_allowed_list /proc/self/status").Output()
		return err
	})
	if got := strings.Fields(string(said)); err != nil || len(got) != 2 || strings.ContainsAny(got[1], ",-") {
		t.Errorf("the process ran on %q: %v", got, err)
	}
	if now, err := CPUs(); err != nil || len(now) != len(all) {
		t.Errorf("after it this thread may run on %v, before on %v: %v", now, all, err)
	}
}

func TestAllThreadsAreBound(t *testing.T) {
	all, err := CPUs()
	if err != nil || len(all) < 2 {
		t.Skipf("CPUs %v: %v", all, err)
	}
	defer func() {
		if err := BindProcess(all); err != nil {
			t.Error(err)
		}
	}()
	if err := BindProcess(all[:1]); err != nil {
		t.Fatal(err)
	}
	on := make(chan []int)
	for range 4 {
		go func() {
			cpus, _ := CPUs() // nil is not what is wanted
			on <- cpus
		}()
	}
	for range 4 {
		if cpus := <-on; len(cpus) != 1 || cpus[0] != all[0] {
			t.Errorf("a thread may run on %v, want %v", cpus, all[:1])
		}
	}
}
