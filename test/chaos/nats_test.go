package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/test/judge"
)

// natsRole in the environment makes this test binary a NATS server with that configuration.
const natsRole = "WEIR_CHAOS_NATS"

// A natsServer is one in a process of its own, which can be killed.
type natsServer struct {
	Addr, Dir string
	Sync      bool // sync_interval: always
	natsPlace

	c   *trial
	cmd *exec.Cmd
	in  interface{ Close() error }
}

// A natsPlace is where a server is among others; the zero value is one alone.
type natsPlace struct {
	Domain  string   // of JetStream
	Cluster string   // where its cluster's servers connect; empty: it has none
	Routes  []string // those of the others
	Leaf    string   // where leaf nodes connect; empty: nowhere
	Remotes []string // to which it connects as one
}

// options adds its place to those of a server.
func (p *natsPlace) options(o *server.Options) {
	urls := func(scheme string, addrs []string) (all []*url.URL) {
		for _, a := range addrs {
			all = append(all, &url.URL{Scheme: scheme, Host: a})
		}
		return all
	}
	split := func(addr string) (host string, port int) {
		host, number, _ := net.SplitHostPort(addr)
		port, _ = strconv.Atoi(number)
		return host, port
	}
	o.JetStreamDomain = p.Domain
	if p.Cluster != "" {
		o.Cluster.Name = p.Domain
		o.Cluster.Host, o.Cluster.Port = split(p.Cluster)
		o.Routes = urls("nats-route", p.Routes)
	}
	// Advertised, addresses would lead past what is between the sites.
	o.LeafNode.ReconnectInterval, o.LeafNode.NoAdvertise = 100*time.Millisecond, true
	if p.Leaf != "" {
		o.LeafNode.Host, o.LeafNode.Port = split(p.Leaf)
	}
	if p.Remotes != nil {
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: urls("nats-leaf", p.Remotes)}}
	}
}

func serveNATS(config string) int {
	var n natsServer
	err := json.Unmarshal([]byte(config), &n)
	host, port, _ := net.SplitHostPort(n.Addr)
	number, _ := strconv.Atoi(port)
	if err == nil {
		err = func() error {
			o := &server.Options{
				ServerName: n.Addr, Host: host, Port: number, NoSigs: true, NoLog: true, JetStream: true, StoreDir: n.Dir, SyncAlways: n.Sync, JetStreamMaxStore: 1 << 40,
			}
			n.options(o)
			s, err := server.NewServer(o)
			if err != nil {
				return err
			}
			s.Start()
			if !s.ReadyForConnections(30 * time.Second) {
				return fmt.Errorf("NATS on %s is not ready", n.Addr)
			}
			fmt.Println("ready")
			_, _ = bufio.NewReader(os.Stdin).ReadString(0) // until the parent closes it or ends
			s.Shutdown()
			s.WaitForShutdown()
			return nil
		}()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// nats starts a server that stores in dir.
func (c *trial) nats(dir string, sync bool) *natsServer {
	c.Helper()
	return c.natsAt(&natsServer{Addr: judge.FreeAddr(c), Dir: filepath.Join(dir, "nats"), Sync: sync})
}

// natsAt starts a server that is described.
func (c *trial) natsAt(n *natsServer) *natsServer {
	c.Helper()
	n.c = c
	n.start()
	c.Cleanup(n.kill)
	return n
}

func (n *natsServer) start() {
	n.c.Helper()
	config, err := json.Marshal(n)
	if err != nil {
		n.c.Fatal(err)
	}
	n.cmd = exec.Command(os.Args[0])
	n.cmd.Env = append(os.Environ(), natsRole+"="+string(config))
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := n.cmd.StdinPipe()
	if err != nil {
		n.c.Fatal(err)
	}
	n.in = in
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		n.c.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		n.c.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		n.c.Fatalf("NATS said %q, %v", line, err)
	}
}

// kill ends it as kill -9 does. It may be called twice.
func (n *natsServer) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.cmd = nil
	}
}

func (n *natsServer) signal(s syscall.Signal) {
	n.c.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.c.Fatal(err)
	}
}

// external is the configuration of a node on NATS at addr, whose namespace stores.
func external(addr string, change map[string]any) map[string]any {
	config := judge.Namespace(nil)
	config["broker"] = map[string]any{"kind": "nats", "nats": map[string]any{"url": "nats://" + addr, "dir": nil}}
	for k, v := range change {
		config[k] = v
	}
	return config
}
