package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/bench/program"
)

// settling is how long connections are idle before they are measured: their ciphers, which are
// made again with the next record, are gone then.
const settling = 15 * time.Second

// measureIdle prints the memory of an idle subscriber in each of the ways.
func (b *bench) measureIdle(ctx context.Context) error {
	for round := range b.rounds {
		for _, way := range []string{"AES-128-GCM", "RFC 8998", "TLCP"} {
			live, resident, err := b.idleIn(ctx, way)
			if err != nil {
				return fmt.Errorf("idle, %s: %w", way, err)
			}
			fmt.Printf("idle %s, round %d: %d subscribers, %.0f bytes of heap and stacks and %.0f resident bytes each\n", way, round+1, b.idle, live, resident)
		}
	}
	return nil
}

// idleIn returns by how much the live heap and stacks, and the resident memory, grow for a
// subscriber.
func (b *bench) idleIn(ctx context.Context, way string) (live, resident float64, err error) {
	s, err := b.startWeir(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer s.Kill()
	for range 100 { // warm up
		c, err := subscriber(ctx, s.addr, way)
		if err != nil {
			return 0, 0, err
		}
		_ = c.Close()
	}
	liveBefore, residentBefore, err := s.memory(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range b.idle {
		c, err := subscriber(ctx, s.addr, way)
		if err != nil {
			return 0, 0, fmt.Errorf("subscriber %d: %w", i+1, err)
		}
		defer func() { _ = c.Close() }()
	}
	time.Sleep(settling)
	liveAfter, residentAfter, err := s.memory(ctx)
	each := float64(b.idle)
	return (liveAfter - liveBefore) / each, (residentAfter - residentBefore) / each, err
}

// memory collects garbage twice and returns what is left on the heap and stacks, and resident.
func (s *server) memory(ctx context.Context) (live, resident float64, err error) {
	for range 2 {
		if _, err := program.Get(ctx, "http://"+s.admin+"/debug/pprof/heap?gc=1"); err != nil {
			return 0, 0, err
		}
	}
	m, err := program.Metrics(ctx, "http://"+s.admin+"/metrics")
	if err != nil {
		return 0, 0, err
	}
	bytes, err := program.Resident(s.PID())
	return m["go_memstats_alloc_bytes"] + m["go_memstats_stack_inuse_bytes"], float64(bytes), err
}
