package limit

import (
	"net/netip"
	"strings"
	"testing"
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
	if err != nil || f.Limits() {
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

func TestBoundsAreReplacedAndKeepWhatWasUsed(t *testing.T) {
	f, err := NewFront(FrontConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	set := func(c FrontConfig) {
		t.Helper()
		replace, err := f.Prepare(c)
		if err != nil {
			t.Fatal(err)
		}
		replace()
	}
	publish := func(want bool) {
		t.Helper()
		if _, ok := f.Publish(netip.Addr{}, "ann", 0); ok != want {
			t.Errorf("a publication: %v, want %v", ok, want)
		}
	}
	addr := netip.MustParseAddr("192.0.2.1")
	connect := func(wantCounted, wantOK bool) {
		t.Helper()
		if counted, ok := f.Connect(addr, 0); counted != wantCounted || ok != wantOK {
			t.Errorf("counted %v, ok %v; want %v, %v", counted, ok, wantCounted, wantOK)
		}
	}
	publish(true)
	connect(false, true)
	tight := FrontConfig{PerIdentity: IdentityLimits{PublishRate: Rate{PerSecond: 1, Burst: 1}}, PerAddress: AddressLimits{Connections: 2}}
	set(tight)
	if !f.Connected(addr) {
		t.Error("the connection from before does not count")
	}
	publish(true)
	publish(false)
	set(tight)
	publish(false) // what was used stays used
	if _, err := f.Prepare(FrontConfig{Buckets: -1}); err == nil {
		t.Error("an invalid number of buckets is accepted")
	}
	publish(false)
	connect(true, true)
	connect(false, false)
	tight.Exempt = []string{"192.0.2.0/24"}
	set(tight)
	connect(false, true)
	if f.Connected(addr) {
		t.Error("a connection of an exempt address counts")
	}
	set(FrontConfig{})
	publish(true)
	f.Disconnect(addr)
	tight.Exempt = nil
	set(tight)
	connect(true, true) // one of the two from before is left
	connect(false, false)
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
			t.Error("an anonymous one is refused")
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
	f(`exempt: "all" is not a network`, FrontConfig{Exempt: []string{"all"}})
	f("buckets: -1", FrontConfig{Buckets: -1})
}

func TestRequestsThatWaitedTooLongAreDropped(t *testing.T) {
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

func TestCanceledRequestsArePassedOver(t *testing.T) {
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
