package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func addressOf(l net.Listener) Address {
	if l.Addr().Network() == "unix" {
		return Address{Unix: l.Addr().String()}
	}
	return Address{IP: netip.MustParseAddrPort(l.Addr().String())}
}

func TestCheckerChecksRealServers(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "app.example" {
			w.WriteHeader(421)
		}
	})
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/bad", 302) })
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(204) })
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	tcp := httptest.NewServer(mux)
	defer tcp.Close()
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "app.sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	go srv.Serve(unix)
	defer srv.Close()

	for _, a := range []Address{addressOf(tcp.Listener), addressOf(unix)} {
		f := func(check, path, status, want string) {
			t.Helper()
			h := HealthConfig{Check: check, Path: path, Status: status, Host: "app.example"}.withDefaults()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := Checker{}.Check(ctx, a, h)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s %s %s: %v, want %q", a, check, path, err, want)
			}
		}
		f(CheckTCP, "", "", "")
		f(CheckHTTP, "/ok", "", "")
		f(CheckHTTP, "/bad", "", "status 503 is not in 200-399")
		f(CheckHTTP, "/bad", "200,503", "")
		f(CheckHTTP, "/moved", "", "")
		f(CheckHTTP, "/moved", "200", "status 302")
		f(CheckHTTP, "/hints", "204", "")
		f(CheckHTTP, "/stream", "", "")
		f(CheckHTTP, "/none", "", "status 404")
	}
}

func TestCheckerGivesUpInTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it never accepts: the kernel does
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Checker{}.Check(ctx, addressOf(l), HealthConfig{Path: "/"}.withDefaults())
	}()
	conn, err := l.Accept() // the check is under way
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	if err := <-done; err == nil {
		t.Error("a check without a reply passed")
	}
	addr := addressOf(l)
	l.Close()
	if err := (Checker{}).Check(t.Context(), addr, HealthConfig{Check: CheckTCP}.withDefaults()); err == nil {
		t.Error("a closed port passed")
	}
}

func TestCheckerGreetsWithPROXY(t *testing.T) {
	for version, want := range map[int]string{0: "GET / ", 1: "PROXY UNKNOWN\r\nGET / ", 2: "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00GET / "} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				got <- err.Error()
				return
			}
			defer conn.Close()
			r := bufio.NewReader(conn)
			b := make([]byte, len(want))
			io.ReadFull(r, b)
			for line := "."; line != "\r\n" && line != ""; {
				line, _ = r.ReadString('\n')
			}
			io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\n")
			got <- string(b)
		}()
		h := HealthConfig{Path: "/", ProxyProtocol: version}.withDefaults()
		if err := (Checker{}).Check(t.Context(), addressOf(l), h); err != nil {
			t.Errorf("version %d: %v", version, err)
		}
		if b := <-got; b != want {
			t.Errorf("version %d: sent %q, want %q", version, b, want)
		}
		l.Close()
	}
}

func TestTheSetOfDefaultsChecksAndResolvesForReal(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	s, err := New([]Config{{Name: "test", Peers: peers("localhost:" + port), Health: HealthConfig{Path: "/", Interval: d(10 * time.Millisecond)}}}, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	for deadline := time.After(20 * time.Second); ; {
		if st := s.Stats()[0].Peers; len(st) > 0 && st[0].Health == "up" {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("never up: %+v", s.Stats())
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	<-done
}
