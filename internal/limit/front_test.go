package limit

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnAddressIsHeldToItsConnections(t *testing.T) {
	trust, err := NewTrust(Trusted{Proxies: []string{"10.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFront(FrontConfig{PerAddress: AddressLimits{Connections: 2}, Exempt: []string{"192.0.2.0/24"}}, trust)
	if err != nil {
		t.Fatal(err)
	}
	connect := func(addr string, counted, ok bool) {
		t.Helper()
		if c, o := f.Connect(netip.MustParseAddr(addr), 0); c != counted || o != ok {
			t.Errorf("%s: counted %v, let in %v", addr, c, o)
		}
	}
	connect("198.51.100.1", true, true)
	connect("198.51.100.1", true, true)
	connect("198.51.100.1", false, false)
	connect("::ffff:198.51.100.1", false, false)
	connect("198.51.100.2", true, true)
	for range 3 {
		connect("192.0.2.9", false, true)
		connect("10.0.0.1", false, true)
	}
	connect("2001:db8::1", true, true)
	connect("2001:db8::2", true, true)
	connect("2001:db8::3", false, false) // the same customer's
	f.Disconnect(netip.MustParseAddr("198.51.100.1"))
	connect("198.51.100.1", true, true)
	if s := f.Stats(); s.Connections != 3 {
		t.Errorf("%+v", s)
	}
}

func TestAFrontWithoutLimitsIsNone(t *testing.T) {
	f, err := NewFront(FrontConfig{Exempt: []string{"10.0.0.0/8"}}, nil)
	if f != nil || err != nil {
		t.Fatal(f, err)
	}
	if counted, ok := f.Connect(netip.Addr{}, 0); counted || !ok {
		t.Error("a connection is counted or refused")
	}
	if _, ok := f.Publish(netip.Addr{}, "x", 0); !ok {
		t.Error("a publication is refused")
	}
	if f.Stats() != (FrontStats{}) {
		t.Error("something was counted")
	}
}

func TestAnIdentityIsHeldToItsRate(t *testing.T) {
	f, err := NewFront(FrontConfig{PerIdentity: IdentityLimits{PublishRate: Rate{PerSecond: 1, Burst: 1}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	if _, ok := f.Publish(a, "ann", 0); !ok {
		t.Error("the first is refused")
	}
	if wait, ok := f.Publish(b, "ann", 0); ok || wait != time.Second {
		t.Errorf("the second, from elsewhere: %v, wait %v", ok, wait)
	}
	if _, ok := f.Publish(a, "bob", 0); !ok {
		t.Error("another's is refused")
	}
	for range 5 {
		if _, ok := f.Publish(a, "", 0); !ok {
			t.Error("nobody's is refused")
		}
	}
}

func TestTheFrontSaysWhatIsWrong(t *testing.T) {
	f := func(want string, c FrontConfig) {
		t.Helper()
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("per_address.connections: -1 is negative", FrontConfig{PerAddress: AddressLimits{Connections: -1}})
	f("per_address.connect_rate.per_second", FrontConfig{PerAddress: AddressLimits{ConnectRate: Rate{PerSecond: -1}}})
	f("per_identity.publish_rate.burst", FrontConfig{PerIdentity: IdentityLimits{PublishRate: Rate{Burst: 1}}})
	f(`exempt: "all" is no network`, FrontConfig{Exempt: []string{"all"}})
	f("buckets: -1", FrontConfig{Buckets: -1})
}

func TestAGateLetsTheMostImportantInFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(AdmissionConfig{}, 1)
		leave, _, ok := g.Enter(t.Context(), Market)
		if !ok {
			t.Fatal("the first is refused")
		}
		var order []Class
		var mu sync.Mutex
		for _, c := range []Class{Replay, Market, Order, Control} {
			go func() {
				leave, _, ok := g.Enter(t.Context(), c)
				if !ok {
					t.Errorf("%v is refused", c)
					return
				}
				mu.Lock()
				order = append(order, c)
				mu.Unlock()
				leave()
			}()
			synctest.Wait()
		}
		gone, cancel := context.WithCancel(t.Context())
		go func() {
			if _, _, ok := g.Enter(gone, Order); ok {
				t.Error("who went is let in")
			}
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		leave()
		synctest.Wait()
		if len(order) != 4 || order[0] != Control || order[1] != Order || order[2] != Market || order[3] != Replay {
			t.Errorf("%v", order)
		}
		for _, s := range g.Stats() {
			if s.Offered != s.Admitted+s.Refused+s.Expired+s.Conflated+s.Abandoned || s.Queued != 0 {
				t.Errorf("%+v does not add up", s)
			}
		}
	})
}

func TestAGateRefusesTheMarketAndNoOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(AdmissionConfig{}, 2)
		var refused, served [Classes]atomic.Int64
		var all sync.WaitGroup
		for i := range 2000 { // 4,000/s of 1 ms each for two
			c := Market
			if i%10 == 0 {
				c = Order
			}
			all.Go(func() {
				leave, _, ok := g.Enter(t.Context(), c)
				if !ok {
					refused[c].Add(1)
					return
				}
				time.Sleep(time.Millisecond)
				leave()
				served[c].Add(1)
			})
			time.Sleep(250 * time.Microsecond)
		}
		all.Wait()
		if refused[Order].Load() != 0 || refused[Market].Load() < 500 || served[Market].Load() < 600 {
			t.Errorf("orders: %d refused; market: %d refused, %d served", refused[Order].Load(), refused[Market].Load(), served[Market].Load())
		}
	})
}

func TestWhoWaitedForTooLongIsDropped(t *testing.T) {
	a := NewAdmission[int](AdmissionConfig{Slice: 1})
	for c := Order; c < Classes; c++ {
		if v, _ := a.Offer(c, Key{}, 0, 1, int(c)); v != Wait {
			t.Fatalf("%v: %d", c, v)
		}
	}
	for c := Order; c < Classes; c++ {
		got, class, expired, ok := a.Next(int64(time.Second))
		if !ok || got != int(c) || class != c || expired != (c >= Market) {
			t.Errorf("%v: %d, expired %v", c, got, expired)
		}
	}
}

func TestWhoWentIsPassedOver(t *testing.T) {
	a := NewAdmission[int](AdmissionConfig{Slice: 1})
	a.LetGo(func(i int) bool { return i%2 == 0 })
	for i := range 5 {
		a.Offer(Order, Key{}, 0, 1, i)
	}
	for _, want := range []int{1, 3} {
		if got, _, _, ok := a.Next(0); !ok || got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
	if _, _, _, ok := a.Next(0); ok || a.Len() != 0 {
		t.Error("something is left")
	}
	if s := a.Stats()[Order-1]; s.Abandoned != 3 || s.Admitted != 2 {
		t.Errorf("%+v", s)
	}
}
