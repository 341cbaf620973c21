package poller

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// deniedEnv makes the test binary request io_uring behind a seccomp filter: "call errno".
const deniedEnv = "POLLER_TEST_DENIED"

// Container runtimes and sandboxes forbid io_uring by its system calls, some of them or
// all. A loop that found out after the start would take the process with it.
func TestIOURingThatIsForbiddenIsRefusedInWords(t *testing.T) {
	f := func(call int, errno syscall.Errno, words string) {
		t.Helper()
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", deniedEnv, call, errno))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("system call %d: %v\n%s", call, err, out)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			if !strings.Contains(line, words) {
				t.Errorf("system call %d answers %q: %q, want %q in it", call, errno, line, words)
			}
		}
	}
	const setup, enter, register = 425, 426, 427
	f(setup, syscall.EPERM, "io_uring_setup: a seccomp filter")
	f(setup, syscall.ENOSYS, "io_uring_setup: this kernel has no io_uring, or a sandbox hides it")
	f(enter, syscall.EPERM, "io_uring_enter: operation not permitted: a seccomp filter")
	f(enter, syscall.ENOSYS, "io_uring_enter: function not implemented: a seccomp filter")
	f(register, syscall.EPERM, "io_uring_register is refused: a seccomp filter")
}

// denied is what the child does.
func denied(args []string) error {
	call, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	errno, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if err := forbid(uint32(call), uint32(errno)); err != nil {
		return err
	}
	fmt.Println("probe:", ProbeUring())
	fmt.Println("prefer:", PreferUring())
	return nil
}

// forbid makes a system call of this goroutine, which stays on its thread, answer errno.
func forbid(call, errno uint32) error {
	type instruction struct {
		code   uint16
		jt, jf uint8
		k      uint32
	}
	const load, jumpIfEqual, ret, allow, refuse = 0x20, 0x15, 0x06, 0x7fff0000, 0x00050000
	filter := []instruction{{code: load}, {jumpIfEqual, 0, 1, call}, {code: ret, k: refuse | errno}, {code: ret, k: allow}}
	prog := struct {
		n uint16
		p *instruction
	}{uint16(len(filter)), &filter[0]}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return fmt.Errorf("the filter is for little endian")
	}
	const noNewPrivs, setModeFilter = 38, 1
	seccomp := map[string]uintptr{"amd64": 317, "arm64": 277}[runtime.GOARCH]
	runtime.LockOSThread()
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, noNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("prctl: %w", e)
	}
	if _, _, e := syscall.RawSyscall(seccomp, setModeFilter, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	return nil
}
