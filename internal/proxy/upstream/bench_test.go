package upstream

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
)

func BenchmarkPickDone(b *testing.B) {
	for _, balance := range []string{RoundRobin, LeastConnections, EWMA, ConsistentHash} {
		for _, n := range []int{3, 50} {
			c := newTestCluster(b, Config{Balance: balance, Peers: equal(n)})
			one := func(now int64) {
				p, err := c.Pick(now, mix(uint64(now)), nil)
				if err != nil {
					b.Fatal(err)
				}
				c.Head(p, now, now+ms, 200)
				c.Done(p, Outcome{Status: 200, Start: now, FirstByte: now + ms, End: now + ms, Headed: true})
			}
			b.Run(fmt.Sprintf("%s/%d/alone", balance, n), func(b *testing.B) {
				b.ReportAllocs()
				now := sec
				for b.Loop() {
					now += 1000
					one(now)
				}
			})
			b.Run(fmt.Sprintf("%s/%d/together", balance, n), func(b *testing.B) {
				var now atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					t := now.Add(sec)
					for pb.Next() {
						t += 1000
						one(t)
					}
				})
			})
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	s := newTestSplit(b, SplitConfig{Sticky: "cookie:id", Arms: []ArmConfig{{"a", 90}, {"b", 10}}})
	r := &fixedRequest{value: []byte("0123456789abcdef"), addr: netip.MustParseAddr("10.0.0.1")}
	b.ReportAllocs()
	for b.Loop() {
		s.Choose(r, 1)
	}
}
