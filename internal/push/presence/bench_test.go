package presence_test

import (
	"fmt"
	"testing"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/cluster/clustertest"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// crowded returns a Presence that does not run, with n members on one channel.
func crowded(b *testing.B, n int) *presence.Presence {
	b.Helper()
	bus := clustertest.NewNet(1).Join("a")
	c, err := cluster.New(cluster.Config{}, bus, nil)
	if err != nil {
		b.Fatal(err)
	}
	p, err := presence.New(presence.Config{}, c, bus, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		if err := p.Join("room", presence.Member{Client: fmt.Sprint(i), User: fmt.Sprint(i % 1000)}); err != nil {
			b.Fatal(err)
		}
	}
	return p
}

func BenchmarkJoinAndLeave(b *testing.B) {
	p := crowded(b, 10_000)
	m := presence.Member{Client: "x", User: "7"}
	for b.Loop() {
		if err := p.Join("room", m); err != nil {
			b.Fatal(err)
		}
		p.Leave("room", "x")
	}
}

func BenchmarkCount(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		b.Run(fmt.Sprint("members=", n), func(b *testing.B) {
			p := crowded(b, n)
			for b.Loop() {
				p.Count("room")
			}
		})
	}
}
