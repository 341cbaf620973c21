package accept_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/measure/accept"
	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/observe/audit"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// The test's own program is the gateway, the planted leaks, a gateway that leaks, and one on a slow
// disk: the name that it is called by says which.
const (
	gateway  = "accept-gateway"
	slowDisk = "accept-slow-disk"
	leaky    = "accept-leaky-gateway"
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case gateway, slowDisk, leaky:
		if err := child(os.Args[0], os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

func child(name string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if args[0] == "accept" {
		return accept.Plant(ctx, args[2], os.Stdin, os.Stdout)
	}
	src := config.Sources{File: args[2]}
	for i := 4; i < len(args); i += 2 {
		set, err := config.ParseSet(args[i])
		if err != nil {
			return err
		}
		src.Flags = append(src.Flags, set)
	}
	c, err := config.Load(src)
	if err != nil {
		return err
	}
	if name == slowDisk {
		return slowlyRecorded(ctx, c.Admin.AuditLog)
	}
	if name == leaky {
		go func() {
			for range time.Tick(5 * time.Millisecond) {
				go forget()
			}
		}()
	}
	a, err := app.New(c, app.Options{Version: "test", Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return err
	}
	return a.Run(ctx, context.Background(), func() {
		fmt.Printf("weir serves on %s, admin on http://%s\n", a.URL(), a.AdminAddr())
	})
}

// forget is what the leaky gateway leaks.
func forget() { select {} }

// slowlyRecorded records changes on a disk that takes more than a second for each.
func slowlyRecorded(ctx context.Context, file string) error {
	records, err := audit.Open(file, func(f *os.File) error {
		time.Sleep(600 * time.Millisecond) // what is planted
		return f.Sync()
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := records.Begin(r.Method+" "+r.URL.Path, "", "")
		if err == nil {
			err = records.Answer(n, http.StatusNotFound)
		}
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	})}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	fmt.Printf("weir serves on http://%s, admin on http://%s\n", l.Addr(), l.Addr())
	if err := s.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// room is for two indicators at once: each has gateways and a load of its own.
var room = make(chan struct{}, 2)

// finding runs one indicator with what is planted, has the report verified, and returns it.
func finding(t *testing.T, name string, plant func(o *accept.Options)) accept.Finding {
	t.Helper()
	room <- struct{}{}
	defer func() { <-room }()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	o := accept.Options{Dir: t.TempDir(), Program: [2]string{exe, gateway}, Stderr: &said}
	o.Small()
	if plant != nil {
		plant(&o)
	}
	list, err := accept.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := accept.Run(t.Context(), list, o)
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	if _, err := accept.Verify(o.Dir, r.Head); err != nil {
		t.Errorf("the report is not what its evidence gives: %v", err)
	}
	for _, form := range []string{"report.md", "report.html"} {
		if b, err := os.ReadFile(o.Dir + "/" + form); err != nil || !strings.Contains(string(b), r.Findings[0].Title) {
			t.Errorf("%s does not have the indicator: %v", form, err)
		}
	}
	if said.Len() > 0 {
		t.Logf("the processes said: %s", said.String())
	}
	return r.Findings[0]
}

// failed are the checks that did not hold.
func failed(f accept.Finding) (list []string) {
	for _, c := range f.Checks {
		if c.Verdict == capacity.Fail {
			list = append(list, c.What)
		}
	}
	return list
}

// Each violation makes its indicator fail, by the check that is about it and by no other, where one does not bring
// the next, as between two sites. The indicator beside it does not fail, and without a violation none does.
func TestPlantedViolations(t *testing.T) {
	trial.Long(t)
	f := func(what, name, check string, plant func(o *accept.Options), beside ...string) {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			got := finding(t, name, plant)
			if what == "leak" && !strings.Contains(strings.Join(got.Why, " "), "accept_test.go:") {
				t.Errorf("the line that leaks is not named: %q", got.Why)
			}
			if list := failed(got); got.Verdict != capacity.Fail || len(list) != 1 && name != "two-sites" || !strings.Contains(strings.Join(list, "; "), check) {
				t.Errorf("%s: %s, failed: %q, want %q; %q", name, got.Verdict, list, check, got.Why)
			}
			for _, other := range beside {
				if got := finding(t, other, plant); len(failed(got)) > 0 {
					t.Errorf("%s beside %s: failed: %q; %q", other, name, failed(got), got.Why)
				}
			}
		})
	}
	f("stall", "sustained", "longest response", func(o *accept.Options) { o.Plant(relay(t, stall())) })
	f("lost message", "sustained", "did not receive", func(o *accept.Options) { o.Plant(relay(t, lose())) })
	f("leak", "leaks", "leaks in Weir", func(o *accept.Options) { o.Program[1] = leaky }, "audit")
	f("slow disk", "audit", "P99 of a change", func(o *accept.Options) { o.Program[1] = slowDisk })
	f("skewed clock", "partition", "clock 500 s off", func(o *accept.Options) {
		o.Set("--set", "auth.leeway=5m") // so the gateway takes the clock for right
		o.Skew(200 * time.Second)
	})
	f("message of two sites that is lost", "two-sites", "did not receive", func(o *accept.Options) { o.Plant(relay(t, lose())) })
	f("site that takes over without what is acknowledged", "two-sites", "gaps that subscribers", func(o *accept.Options) {
		o.Set("--set", `namespaces=[{"name":"default","anonymous":true,"durability":"stored"}]`) // acknowledged when one site has it
	})
	// On a machine that others use, nothing that depends on time passes or fails.
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		for name, want := range map[string]capacity.Verdict{"sustained": capacity.Inconclusive, "audit": capacity.Inconclusive, "leaks": capacity.Pass, "connections": capacity.Inconclusive, "shipments": capacity.Pass, "two-sites": capacity.Inconclusive} {
			if got := finding(t, name, (*accept.Options).Noisy); got.Verdict != want || len(failed(got)) > 0 {
				t.Errorf("%s: %s, want %s, failed: %q; %q", name, got.Verdict, want, failed(got), got.Why)
			}
		}
	})
}

func TestAnotherServiceIsMeasuredByWhatHTTPReaches(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // ends with ErrServerClosed
	defer s.Close()
	there := func(o *accept.Options) { o.Target = "http://" + l.Addr().String() + "/" }
	if f := finding(t, "sustained", there); f.Verdict != capacity.Invalid && f.Verdict != capacity.Inconclusive || len(failed(f)) > 0 {
		t.Errorf("%s, failed: %q; %q", f.Verdict, failed(f), f.Why)
	}
	if f := finding(t, "audit", there); f.Verdict != capacity.Invalid || !strings.Contains(f.Why[0], "--target") {
		t.Errorf("%s: %q", f.Verdict, f.Why)
	}
}

// Without a gateway to connect to, who disconnects clients of shipments does not wait for them.
func TestShipmentsEndWithTheirLoad(t *testing.T) {
	t.Parallel()
	nothing := func(string) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		return l.Addr().String(), l.Close()
	}
	f := finding(t, "shipments", func(o *accept.Options) { o.Plant(nothing) })
	if f.Verdict != capacity.Invalid || len(f.Why) == 0 || !strings.Contains(f.Why[0], "not run: connect") {
		t.Errorf("%s: %q", f.Verdict, f.Why)
	}
}

func TestAPlantedLeakIsOne(t *testing.T) {
	var out bytes.Buffer
	if err := accept.Plant(t.Context(), "nothing", strings.NewReader(""), &out); err == nil {
		t.Error("a leak of nothing is planted")
	}
}

// relay puts pass between clients and a gateway: it is given what the gateway sends.
func relay(t *testing.T, pass func(chunk []byte) []byte) func(address string) (string, error) {
	return func(address string) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		var all sync.WaitGroup
		t.Cleanup(all.Wait)
		t.Cleanup(func() { _ = l.Close() })
		all.Go(func() {
			for {
				down, err := l.Accept()
				if err != nil {
					return
				}
				all.Go(func() {
					defer down.Close()
					up, err := net.Dial("tcp", address)
					if err != nil {
						return
					}
					defer up.Close()
					all.Go(func() {
						_, _ = io.Copy(up, down) // until one side ends
						_ = up.Close()
					})
					buf := make([]byte, 64<<10)
					for {
						n, err := up.Read(buf)
						if _, werr := down.Write(pass(buf[:n])); err != nil || werr != nil {
							return
						}
					}
				})
			}
		})
		return l.Addr().String(), nil
	}
}

// stall holds everything back for 1.5 s, once, after some chunks.
func stall() func([]byte) []byte {
	var n atomic.Int64
	var once sync.Mutex
	return func(b []byte) []byte {
		if n.Add(1) == 1200 {
			once.Lock()
			time.Sleep(1500 * time.Millisecond) // what is planted
			once.Unlock()
		}
		once.Lock()
		defer once.Unlock()
		return b
	}
}

// lose loses one event that a subscriber was to receive.
func lose() func([]byte) []byte {
	var n atomic.Int64
	return func(b []byte) []byte {
		event := bytes.Contains(b, []byte("data: ")) && !bytes.HasPrefix(b, []byte("HTTP/")) && bytes.HasSuffix(b, []byte("\n\n\r\n"))
		if event && n.Add(1) == 1200 { // whole chunks of HTTP
			return nil
		}
		return b
	}
}
