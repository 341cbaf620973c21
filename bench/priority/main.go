// Command priority measures what marks and queues by class are worth on a full link: market data,
// orders and control messages, 7:2:1, are sent through a veth that is limited to a rate below what
// is offered. It compares the latency of orders alone, of orders in the mix with one queue, and of
// orders in the mix with a queue for each class (admission.marks and weir tune apply
// qdisc.classes).
//
//	go build -o bin/weir ./cmd/weir && go build -o bin/priority ./bench/priority
//	sudo bin/priority -weir bin/weir
//
// It needs root, makes network namespaces of its own, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	weir, engine, rate string
	loops, rounds      int
	warm, length       time.Duration
	overload           float64
	payload            int
	role               string
}

// Roles of the processes: each namespace has one.
const (
	roleServer = "server"
	roleClient = "client"
)

func main() {
	var o options
	flag.StringVar(&o.weir, "weir", "", "the gateway's `binary`")
	flag.StringVar(&o.engine, "engine", "auto", "`engine` of the gateway's loops")
	flag.IntVar(&o.loops, "loops", 1, "event loops of the gateway")
	flag.StringVar(&o.rate, "rate", "40mbit", "rate of the `link`, as tc has it")
	flag.IntVar(&o.rounds, "rounds", 5, "`rounds` of alone, without and with")
	flag.DurationVar(&o.warm, "warm", 2*time.Second, "time before a run is measured")
	flag.DurationVar(&o.length, "length", 10*time.Second, "length of a run")
	flag.Float64Var(&o.overload, "overload", 1.5, "what is offered, as a `part` of the link")
	flag.IntVar(&o.payload, "payload", 1000, "`bytes` of a message")
	flag.StringVar(&o.role, "role", "", "of a process that the program starts itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch o.role {
	case roleClient:
		err = serveClient(os.Stdin, os.Stdout)
	case roleServer:
		err = measure(ctx, &o, os.Stdout)
	default:
		err = inNamespace(ctx, &o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "priority:", err)
		os.Exit(1)
	}
}

// inNamespace runs the program again in a network namespace of its own: everything is gone with it.
func inNamespace(ctx context.Context, o *options) error {
	if o.weir == "" {
		return errors.New("say where the gateway's binary is: -weir")
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"-role", roleServer}, os.Args[1:]...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("in a network namespace (it needs root): %w", err)
	}
	return nil
}
