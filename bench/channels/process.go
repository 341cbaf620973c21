package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// roleEnv is set for the NATS server, which is this program as a process of its own.
const roleEnv = "WEIR_BENCH_NATS"

// serverConfig is the server's, as JSON in roleEnv.
type serverConfig struct {
	Port int
	Dir  string
}

func serveNATS(config string) error {
	var c serverConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: c.Port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: c.Dir, JetStreamMaxStore: 1 << 40, MaxPayload: 2 << 20,
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Minute) {
		return fmt.Errorf("not ready on port %d", c.Port)
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString(0) // until the parent ends
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// A natsServer is the server's process.
type natsServer struct {
	serverConfig
	cmd *exec.Cmd
	in  io.Closer
}

// start starts the server and returns how long it took until it was ready.
func (s *natsServer) start() (time.Duration, error) {
	config, err := json.Marshal(s.serverConfig)
	if err != nil {
		return 0, err
	}
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), roleEnv+"="+string(config)), os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return 0, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return 0, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return 0, fmt.Errorf("the NATS server did not start: %q, %w", line, err)
	}
	return time.Since(began), nil
}

func (s *natsServer) stop() {
	_ = s.in.Close()
	_ = s.cmd.Wait()
}

// kill ends it as kill -9 does.
func (s *natsServer) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// newServer starts a server on a free port, with its files in a directory of its own.
func newServer(o *options) (*natsServer, func(), error) {
	dir, err := os.MkdirTemp(o.dir, "weir-channels-")
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	s := &natsServer{serverConfig: serverConfig{Port: port, Dir: dir}}
	if _, err := s.start(); err != nil {
		return nil, nil, err
	}
	return s, func() { s.stop(); _ = os.RemoveAll(dir) }, nil
}

// A node is a hub with one shard on a goroutine.
type node struct {
	*hub.Hub
	broker *nats.Broker
	shard  *hub.Shard
	wake   chan struct{}
	calls  chan func()
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

func startNode(addr string, ns hub.Namespace) (*node, error) {
	b, err := nats.New(nats.Config{URL: "nats://" + addr}, nil)
	if err != nil {
		return nil, err
	}
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{ns}, MaxChannels: 1 << 22}, b)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	if err := h.Start(ctx); err != nil {
		stop()
		return nil, err
	}
	n := &node{Hub: h, broker: b, wake: make(chan struct{}, 1), calls: make(chan func()), stop: stop}
	n.shard = h.NewShard(func() {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	})
	n.wg.Go(func() {
		for {
			select {
			case <-n.wake:
				n.shard.Run()
			case f := <-n.calls:
				f()
			case <-ctx.Done():
				return
			}
		}
	})
	return n, nil
}

func (n *node) close() {
	n.stop()
	n.wg.Wait()
	_ = n.Close()
}

// A relay is a TCP proxy whose connections can be cut.
type relay struct {
	l  net.Listener
	to string

	mu    sync.Mutex
	conns []net.Conn
}

func startRelay(to string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{l: l, to: to}
	go func() { // until close
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, c, d)
			r.mu.Unlock()
			go copyTo(c, d)
			go copyTo(d, c)
		}
	}()
	return r, nil
}

func copyTo(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	_ = dst.Close()
	_ = src.Close()
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

func (r *relay) close() { _ = r.l.Close(); r.cut() }
