// Memory answers what a subscriber costs: inside a net/http, Gin or Echo program
// whose plaintext streams move to event loops, with a goroutine for each instead, and
// in the gateway.
//
//	$ go run ./memory -n 5000
//	             bytes per subscriber   of the gateway's
//	gateway                       …            1.00
//	gin                           …               …
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/weir-gateway/weir/hub/hubhttp"
	weirecho "github.com/weir-gateway/weir/integrations/echo"
	weirgin "github.com/weir-gateway/weir/integrations/gin"
)

func main() {
	n := flag.Int("n", 5000, "subscribers")
	rounds := flag.Int("rounds", 3, "rounds; the median counts")
	serve := flag.String("serve", "", "what the program's own children serve")
	flag.Parse()
	err := error(nil)
	if *serve != "" {
		err = child(*serve)
	} else {
		err = compare(*n, *rounds)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// child serves one kind of program on a free port and prints the port. It ends with
// its standard input.
func child(kind string) error {
	loops := 0
	if kind == "goroutines" {
		loops = -1
	}
	h, err := hubhttp.New(hubhttp.Config{Loops: loops})
	if err != nil {
		return err
	}
	var handler http.Handler = http.StripPrefix("/e", h)
	switch kind {
	case "gin":
		gin.SetMode(gin.ReleaseMode)
		r := gin.New()
		weirgin.Mount(r.Group("/e"), h)
		handler = r
	case "echo":
		e := echo.New()
		weirecho.Mount(e.Group("/e"), h)
		handler = e
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = h.Run(context.Background()) }()
	go func() { _ = http.Serve(l, handler) }() //nolint:gosec // for this measurement only
	fmt.Println(l.Addr())
	_, err = io.Copy(settling{}, os.Stdin)
	return err
}

// settling collects what is garbage whenever a line comes: what is left is what the
// subscribers cost.
type settling struct{}

func (settling) Write(b []byte) (int, error) {
	debug.FreeOSMemory()
	fmt.Println("settled")
	return len(b), nil
}

func compare(n, rounds int) error {
	dir, err := os.MkdirTemp("", "weir-memory")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	weir := filepath.Join(dir, "weir")
	build := exec.Command("go", "build", "-o", weir, "./cmd/weir")
	build.Dir = ".." // the gateway's module
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build weir (run this in examples/): %v %s", err, out)
	}
	kinds := []string{"gateway", "nethttp", "gin", "echo", "goroutines"}
	cost := map[string][]float64{}
	for round := range rounds {
		for _, kind := range kinds {
			fmt.Fprintf(os.Stderr, "\rround %d of %d: %-10s", round+1, rounds, kind)
			one, err := measure(kind, weir, dir, n)
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			cost[kind] = append(cost[kind], one)
		}
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	fmt.Printf("%-12s %22s %18s\n", "", "bytes per subscriber", "of the gateway's")
	for _, kind := range kinds {
		fmt.Printf("%-12s %22.0f %18.2f\n", kind, median(cost[kind]), median(cost[kind])/median(cost["gateway"]))
	}
	return nil
}

func median(v []float64) float64 {
	for i := range v {
		for j := i; j > 0 && v[j] < v[j-1]; j-- {
			v[j], v[j-1] = v[j-1], v[j]
		}
	}
	return v[len(v)/2]
}

// measure opens n streams and returns how much the process grew for each.
func measure(kind, weir, dir string, n int) (float64, error) {
	cmd := exec.Command(os.Args[0], "-serve", kind)
	path := "/e/sse"
	if kind == "gateway" {
		path = "/sse"
		data := filepath.Join(dir, "data")
		cmd = exec.Command(weir, "serve", "--listen", "127.0.0.1:0", "--set", "admin.listen=off", "--set", "broker.kind=memory",
			"--set", `namespaces=[{"name":"default","anonymous":true}]`, "--set", "broker.nats.dir="+data)
	}
	cmd.Stderr = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	lines.Scan()
	addr := lines.Text()
	if _, rest, ok := strings.Cut(addr, "http://"); ok { // "weir serves on http://ADDR, stores …"
		addr, _, _ = strings.Cut(rest, ",")
	}
	settle := func() {
		if kind == "gateway" {
			time.Sleep(3 * time.Second) // it returns what it does not need by itself
			return
		}
		fmt.Fprintln(in, "settle")
		lines.Scan()
	}
	warm, err := open(addr, path, 100)
	if err != nil {
		return 0, err
	}
	settle()
	before := rss(cmd.Process.Pid)
	conns, err := open(addr, path, n)
	if err != nil {
		return 0, err
	}
	settle()
	grown := rss(cmd.Process.Pid) - before
	for _, c := range append(conns, warm...) {
		_ = c.Close()
	}
	return float64(grown) / float64(n), nil
}

// open subscribes n times and waits for each stream's first block.
func open(addr, path string, n int) ([]net.Conn, error) {
	var conns []net.Conn
	for i := range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return conns, err
		}
		conns = append(conns, c)
		if _, err := fmt.Fprintf(c, "GET %s?channel=c%d HTTP/1.1\r\nHost: a\r\n\r\n", path, i%100); err != nil {
			return conns, err
		}
		buf := make([]byte, 1024)
		for got := ""; !strings.Contains(got, "retry: "); {
			k, err := c.Read(buf)
			if err != nil {
				return conns, fmt.Errorf("after %q: %w", got, err)
			}
			got += string(buf[:k])
		}
	}
	return conns, nil
}

// rss is the private memory of a process in bytes.
func rss(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		log.Fatal(err)
	}
	total := int64(0)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && (f[0] == "Private_Dirty:" || f[0] == "Private_Clean:") {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			total += kb << 10
		}
	}
	return total
}
