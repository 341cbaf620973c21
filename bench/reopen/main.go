// Command reopen measures how long the embedded NATS server's directory takes to change its process: it is filled, stopped and
// opened again in the same process, with its idempotency keys read by the server and without, and opened by a new one.
//
//	go run ./bench/reopen -messages 1000000 -size 900 -channels 10000
//	go run ./bench/reopen -messages 11500000 -size 900 -window 1s
//
// Clients wait from the stop until the directory is open. -window is the namespace's idempotency_window: of messages that are older
// the server reads nothing.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/push/hub"
)

type options struct {
	dir                      string
	messages, size, channels int
	window, wait             time.Duration
	rounds                   int
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "`directory` for the files; empty: a temporary one, which is removed")
	flag.IntVar(&o.messages, "messages", 1_000_000, "messages that the log has")
	flag.IntVar(&o.size, "size", 900, "`bytes` of each")
	flag.IntVar(&o.channels, "channels", 10_000, "channels that they are on")
	flag.DurationVar(&o.window, "window", 24*time.Hour, "idempotency_window of the namespace")
	flag.DurationVar(&o.wait, "wait", 0, "time between the last message and the first stop")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds of each kind")
	flag.Parse()
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "reopen:", err)
		os.Exit(1)
	}
}

func run(o *options) (err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "reopen"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	ns := hub.Namespace{
		Name: "x", HistorySize: o.messages, HistoryTTL: hub.Duration(48 * time.Hour), HistoryBytes: 1 << 40, IdempotencyWindow: hub.Duration(o.window),
	}.WithDefaults()
	start := func(keys [][]byte) (*nats.Broker, error) {
		b, err := nats.New(nats.Config{Dir: o.dir}, nil)
		for _, piece := range keys {
			if err == nil {
				err = nats.ImportKeys(b, piece)
			}
		}
		if err == nil {
			err = b.Start(context.Background(), []hub.Namespace{ns}, func(*hub.Message) {})
		}
		return b, err
	}
	b, err := start(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := fill(b, &ns, o); err != nil {
		return err
	}
	onDisk, err := size(o.dir)
	if err != nil {
		return err
	}
	fmt.Printf("%d messages, %.2f GiB\n", o.messages, float64(onDisk)/(1<<30))
	time.Sleep(o.wait)
	for i := range 2 * o.rounds {
		if err := reopen(b, i%2 == 1); err != nil {
			return err
		}
	}
	for i := range 2 * o.rounds {
		ahead := i < o.rounds // a process that was not handed the keys does not know them
		var pieces [][]byte
		stopped, err := stop(b, ahead, func(piece []byte) error {
			pieces = append(pieces, bytes.Clone(piece))
			return nil
		})
		if err != nil {
			return err
		}
		began := time.Now()
		next, err := start(pieces)
		if err != nil {
			return err
		}
		fmt.Printf("next process, keys %s: stopped after %v, ready %v later\n", keys(ahead), stopped, time.Since(began).Round(time.Millisecond))
		if err := b.Close(); err != nil {
			return err
		}
		b = next
	}
	return nil
}

func keys(ahead bool) string {
	if ahead {
		return "not read"
	}
	return "read by the server"
}

// stop has b let the directory go, and returns how long clients wait for that.
func stop(b *nats.Broker, ahead bool, send func([]byte) error) (took time.Duration, err error) {
	var a *nats.KeysAhead
	began := time.Now()
	if ahead {
		if a, err = nats.ExportKeys(context.Background(), b, send); err != nil {
			return 0, err
		}
		fmt.Printf("keys sent ahead in %v\n", time.Since(began).Round(time.Millisecond))
	}
	began = time.Now()
	err = b.Suspend(a)
	return time.Since(began).Round(time.Millisecond), err
}

// reopen stops the server and opens the directory again.
func reopen(b *nats.Broker, ahead bool) error {
	stopped, err := stop(b, ahead, func([]byte) error { return nil })
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.Resume(); err != nil {
		return err
	}
	opened := time.Since(began)
	for b.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("taken back, keys %s: stopped after %v, open %v later, ready %v later\n", keys(ahead), stopped,
		opened.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return nil
}

// fill publishes the messages, each with an idempotency key.
func fill(b *nats.Broker, ns *hub.Namespace, o *options) error {
	const underWay = 4096
	free, failed := make(chan struct{}, underWay), make(chan error, 1)
	var wg sync.WaitGroup
	data, began := make([]byte, o.size), time.Now()
	for i := range o.messages {
		free <- struct{}{}
		wg.Add(1)
		p := hub.Publication{Channel: fmt.Sprint("x:", i%o.channels), Data: data, IdempotencyKey: fmt.Sprint(i)}
		b.Publish(ns, p, func(_ hub.Position, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
			<-free
			wg.Done()
		})
		if i%100_000 == 99_999 {
			fmt.Fprintf(os.Stderr, "\r%d of %d messages, %d/s ", i+1, o.messages, int(float64(i+1)/time.Since(began).Seconds()))
		}
	}
	wg.Wait()
	fmt.Fprintln(os.Stderr)
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// size returns the bytes of all files in dir.
func size(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			n += i.Size()
		}
		return err
	})
	return n, err
}
