// Command fasthttp is the arm of weir-lab run e1 that is built on fasthttp, in a module of its own so
// that the gateway does not link it:
//
//	go build -C bench/fasthttp -o ../../bin/lab-fasthttp .
//	weir-lab run e1 --program fasthttp=bin/lab-fasthttp
//
// It takes the arguments of weir-lab serve.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/weir-gateway/weir/internal/measure/lab/rung"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab-fasthttp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 || args[0] != "serve" {
		return fmt.Errorf("want the arguments of weir-lab serve, got %q", args)
	}
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	listen := fs.String("listen", "127.0.0.1:0", "`address` to serve on")
	set := map[string]string{}
	fs.Func("set", "`NAME=VALUE` of the rung", func(kv string) error {
		name, value, _ := strings.Cut(kv, "=")
		set[name] = value
		return nil
	})
	if err := fs.Parse(args[2:]); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // a rung ends with its standard input
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return rung.Host(ctx, serve, *listen, set, os.Stdout)
}

// serve answers GET with a stream that stays silent, on a connection that is taken over, and
// anything else with the result of a publish.
func serve(ctx context.Context, env *rung.Env) error {
	l, err := net.Listen("tcp", env.Addr.String())
	if err != nil {
		return err
	}
	var offset atomic.Uint64
	s := &fasthttp.Server{
		Concurrency: 1 << 20, ReduceMemoryUsage: true, KeepHijackedConns: false, NoDefaultServerHeader: true,
		Handler: func(c *fasthttp.RequestCtx) {
			if c.IsGet() {
				c.HijackSetNoResponse(true)
				c.Hijack(stream)
				return
			}
			c.SetContentType("application/json")
			fmt.Fprintf(c, `{"result":{"epoch":"r","offset":%d}}`, offset.Add(1))
		},
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	env.Ready(l.Addr().String())
	if err := s.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// stream writes the beginning of a stream and holds it until the client goes.
func stream(c net.Conn) {
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nretry: 3000\nid: r-0\n\n"); err != nil {
		return
	}
	var b [1]byte
	_, _ = c.Read(b[:]) // until it goes
}
