package observer

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// The test binary is also the process with the fault.
func TestMain(m *testing.M) {
	if fault := os.Getenv("OBSERVER_TEST_FAULT"); fault != "" {
		plant(fault)
	}
	os.Exit(m.Run())
}

// planted starts a process with a fault and returns its number when the fault is at work.
func planted(t *testing.T, fault string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "OBSERVER_TEST_FAULT="+fault, "OBSERVER_TEST_DIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the process with %s did not start: %v", fault, err)
	}
	return cmd.Process.Pid
}

func ready() { fmt.Print("r") }

// plant makes the fault until the process is killed.
func plant(fault string) {
	switch fault {
	case "none":
		ready()
		for {
			time.Sleep(10 * time.Millisecond) // a process with little to do
		}
	case "slow-sync":
		flushForever(filepath.Join(os.Getenv("OBSERVER_TEST_DIR"), "data"))
	case "lock-convoy":
		convoy()
	case "page-fault-storm":
		faultForever()
	case "stopped-reader":
		neverRead()
	case "accept-queue":
		neverAccept()
	case "short connections":
		connectForever()
	}
	panic("no fault called " + fault)
}

// flushForever makes flushes slow with as much as has to be written each time.
func flushForever(name string) {
	f, err := os.Create(name)
	if err != nil {
		panic(err)
	}
	block := make([]byte, 16<<20)
	for n := 0; ; n++ {
		for i := 0; i < len(block); i += 512 {
			block[i] = byte(n)
		}
		for i := range int64(6) {
			if _, err := f.WriteAt(block, i*int64(len(block))); err != nil {
				panic(err)
			}
		}
		if n == 0 {
			ready()
		}
		if err := f.Sync(); err != nil {
			panic(err)
		}
	}
}

// convoy has eight threads that hold one lock nearly all the time: a lock by futex(2), as
// those of C are.
func convoy() {
	var lock atomic.Uint32 // 0 free, 1 taken, 2 taken and waited for
	address := uintptr(unsafe.Pointer(&lock))
	for range 8 {
		go func() {
			runtime.LockOSThread()
			for {
				for !lock.CompareAndSwap(0, 2) {
					lock.CompareAndSwap(1, 2)
					_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, address, 128, 2, 0, 0, 0) // FUTEX_WAIT_PRIVATE
				}
				hold(time.Millisecond)
				lock.Store(0)
				_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, address, 129, 1, 0, 0, 0) // FUTEX_WAKE_PRIVATE
				hold(50 * time.Microsecond)
			}
		}()
	}
	ready()
	select {}
}

// hold sleeps in the kernel, so that the processor is not what is waited for.
func hold(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil)
}

func faultForever() {
	for n := 0; ; n++ {
		b, err := syscall.Mmap(-1, 0, 16<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			panic(err)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		if err := syscall.Munmap(b); err != nil {
			panic(err)
		}
		if n == 0 {
			ready()
		}
	}
}

// neverRead serves a client that reads nothing.
func neverRead() {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		panic(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		panic(err)
	}
	go func() {
		block := make([]byte, 64<<10)
		for {
			if _, err := server.Write(block); err != nil {
				panic(err)
			}
		}
	}()
	ready()
	select {}
}

// neverAccept has clients connect to a listener that accepts no connection and queues one. Each
// sends its request again after a second.
func neverAccept() {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		panic(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		panic(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		panic(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		panic(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	ready()
	for i := range 8 {
		go func() {
			hold(time.Duration(i) * 150 * time.Millisecond) // not all in the same instant
			var queued []net.Conn                           // open, so that they stay in the queue
			for {
				if c, err := net.DialTimeout("tcp4", address, 1500*time.Millisecond); err == nil {
					queued = append(queued, c)
				}
				runtime.KeepAlive(queued)
			}
		}()
	}
	select {}
}

// connectForever makes connections that end after a few bytes.
func connectForever() {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				panic(err)
			}
			_, _ = c.Write(make([]byte, 1000))
			_, _ = c.Read(make([]byte, 1)) // the client's end
			_ = c.Close()
		}
	}()
	for n := 0; ; n++ {
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			panic(err)
		}
		_, _ = c.Read(make([]byte, 1000))
		_ = c.Close()
		if n == 0 {
			ready()
		}
		hold(5 * time.Millisecond)
	}
}
