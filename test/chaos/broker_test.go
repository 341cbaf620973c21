package chaos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/test/judge"
)

// killedNATS: what was acknowledged is there when the server is; meanwhile publishers are
// answered 503, and subscribers stay connected.
func killedNATS(c *trial) {
	n := c.nats(c.TempDir(), false)
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: external(n.Addr, nil)})
	w := c.under(node, load{subscribers: c.size(400), rate: 200, options: exact})
	sessions := w.fleet.Sessions()
	for range c.times(50) {
		w.fault(false, func() {
			refused := w.pub.Refused(http.StatusServiceUnavailable)
			n.kill()
			judge.Eventually(c, patience, "publications are answered 503", func() bool { return w.pub.Refused(http.StatusServiceUnavailable) > refused })
			status, _ := node.Get("/readyz")
			if status != http.StatusServiceUnavailable {
				c.Errorf("/readyz answers %d without NATS", status)
			}
			if node.Series("weir_degraded", `mode="broker-away"`) == 0 {
				judge.Eventually(c, patience, "the node says that it is degraded", func() bool { return node.Series("weir_degraded", `mode="broker-away"`) == 1 })
			}
			c.pause(c.between(0, 700*time.Millisecond))
			n.start()
		})
	}
	for i, m := range w.fleet.Members {
		if m.Ups.Load() != sessions[i] {
			c.Errorf("%s was disconnected", m.Name)
		}
	}
	c.proof = fmt.Sprintf("the process ended each time, %d answers 503", w.pub.Refused(http.StatusServiceUnavailable))
	w.finish()
}

// A volume is an ext4 file system in an image file.
type volume struct {
	c           *trial
	image, path string
	unmounted   bool // at the end of the row, which is after what was started on it has ended
}

// command runs one of the system's.
func (c *trial) command(name string, arg ...string) {
	c.Helper()
	if out, err := exec.Command(name, arg...).CombinedOutput(); err != nil {
		c.Fatalf("%s %s: %v: %s", name, strings.Join(arg, " "), err, out)
	}
}

func (c *trial) volume() *volume {
	dir := c.TempDir()
	v := &volume{c: c, image: filepath.Join(dir, "image"), path: filepath.Join(dir, "mount")}
	c.command("truncate", "-s", "256M", v.image)
	c.command("mkfs.ext4", "-q", "-F", v.image)
	v.mount()
	return v
}

func (v *volume) mount(options ...string) {
	v.c.Helper()
	if err := os.MkdirAll(v.path, 0o700); err != nil {
		v.c.Fatal(err)
	}
	v.c.command("mount", append([]string{"-o", strings.Join(append([]string{"loop"}, options...), ","), v.image}, v.path)...)
	if !v.unmounted {
		v.unmounted = true
		v.c.Cleanup(func() { _ = syscall.Unmount(v.path, syscall.MNT_DETACH) })
	}
}

// copied is the volume as it is on the disk now: what the file system has not written is
// not in it, as after the loss of power.
func (v *volume) copied() *volume {
	v.c.Helper()
	dir := v.c.TempDir()
	w := &volume{c: v.c, image: filepath.Join(dir, "image"), path: filepath.Join(dir, "mount")}
	v.c.command("cp", "--sparse=always", v.image, w.image)
	return w
}

// drop ends the use of the volume and frees its image.
func (v *volume) drop() {
	v.c.Helper()
	v.c.command("umount", v.path)
	if err := os.Remove(v.image); err != nil {
		v.c.Fatal(err)
	}
}

// powerLoss: NATS continues with what its disk had at a random instant. With sync always that
// is all; without, what is missing is a declared gap.
func powerLoss(c *trial, sync bool) {
	v := c.volume()
	n := c.nats(v.path, sync)
	config := external(n.Addr, nil)
	config["broker"].(map[string]any)["nats"].(map[string]any)["assume_synced"] = sync
	if sync {
		config["namespaces"] = judge.Namespace(map[string]any{"durability": "synced"})["namespaces"]
	}
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: config})
	w := c.under(node, load{subscribers: c.size(100), rate: 200, options: history.Options{ExactlyOnce: true, NoGaps: sync}})
	rewound := 0
	for range c.times(30) {
		w.more(50)
		c.pause(c.between(0, time.Second))
		w.fault(false, func() {
			n.signal(syscall.SIGSTOP) // nothing is written while the image is copied
			before := newest(w.pub.Acked())
			lost := v.copied()
			n.kill()
			v.drop()
			lost.mount()
			v, n.Dir = lost, filepath.Join(lost.path, "nats")
			n.start()
			if last := lastOf(c, n.Addr); last < before {
				rewound++
			} else if !sync && last == 0 {
				c.Error("NATS has no log")
			}
		})
	}
	if sync && rewound > 0 {
		c.Errorf("%d times acknowledged messages were not on the disk", rewound)
	}
	c.proof = fmt.Sprintf("NATS started on the copied image each time; acknowledged messages were missing in %d copies", rewound)
	if !sync && rewound == 0 {
		c.Error("no copy lacked anything: that was no loss of power")
	}
	w.finish()
}

// newest is the newest acknowledged offset of the epoch acknowledged last.
func newest(acked []judge.Acked) (offset uint64) {
	if len(acked) == 0 {
		return 0
	}
	epoch := acked[len(acked)-1].Epoch
	for _, a := range acked {
		if a.Epoch == epoch {
			offset = max(offset, a.Offset)
		}
	}
	return offset
}

// stream is the default namespace's on NATS at addr.
func stream(c *trial, addr string) (jetstream.Stream, func()) {
	c.Helper()
	nc, err := natsgo.Connect("nats://" + addr)
	if err != nil {
		c.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		c.Fatal(err)
	}
	s, err := js.Stream(context.Background(), "weir_default")
	if err != nil {
		nc.Close()
		return nil, func() {}
	}
	return s, nc.Close
}

func lastOf(c *trial, addr string) uint64 {
	s, done := stream(c, addr)
	defer done()
	if s == nil {
		return 0
	}
	return s.CachedInfo().State.LastSeq
}

// badLink: random faults of the network between the gateway and NATS. Nothing is lost,
// memory stays, and the node works again within seconds of the end.
func badLink(c *trial) {
	n := c.nats(c.TempDir(), false)
	link := judge.NewLink(c, n.Addr)
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: external(link.Addr, nil)})
	w := c.under(node, load{subscribers: c.size(200), rate: 100, options: exact})
	unready, slowest := 0, time.Duration(0)
	kinds := map[string]int{}
	for range c.times(200) {
		kind, shape, d := "latency", judge.Shape{}, c.between(500*time.Millisecond, 3*time.Second)
		switch c.rng.IntN(6) {
		case 0:
			shape.Latency = c.between(50*time.Millisecond, 2*time.Second)
		case 1:
			kind, shape.Rate = "64 KB/s", 64<<10
		case 2:
			kind, shape.HoldUp, shape.HoldDown = "silence", true, true
			d = []time.Duration{time.Second, 10 * time.Second}[c.rng.IntN(2)]
		case 3:
			kind, shape.HoldUp = "silence to NATS", true
		case 4:
			kind, shape.HoldDown = "silence from NATS", true
		default:
			kind = "reset"
		}
		kinds[kind]++
		var ended time.Time
		w.fault(false, func() {
			if kind == "reset" {
				if link.Reset() == 0 {
					c.Error("there was no connection to reset")
				}
			} else {
				link.Set(shape)
			}
			until := time.Now().Add(d)
			seen := false
			for time.Now().Before(until) {
				if status, _ := node.Get("/readyz"); status != http.StatusOK {
					seen = true
				}
				c.pause(50 * time.Millisecond)
			}
			if seen {
				unready++
			} else if shape.HoldUp && shape.HoldDown && d >= 10*time.Second {
				c.Error("10 s of silence, and the node was ready all the time")
			}
			link.Set(judge.Shape{})
			ended = time.Now()
		})
		judge.Eventually(c, patience, "the node is ready", func() bool { status, _ := node.Get("/readyz"); return status == http.StatusOK })
		slowest = max(slowest, time.Since(ended))
	}
	c.proof = fmt.Sprintf("%v; not ready during %d of them", kinds, unready)
	c.note("ready and publishing at most %.1f s after a fault", slowest.Seconds())
	if grown := c.rss[1] - c.rss[0]; grown > 64<<20 {
		c.Errorf("memory has grown by %d MiB", grown>>20)
	}
	w.finish()
}

// duplicates: every publication is sent twice while the gateway and NATS are killed in
// turn: each is stored once, and the second answer is the first.
func duplicates(c *trial) {
	n := c.nats(c.TempDir(), false)
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: external(n.Addr, nil)})
	w := c.under(node, load{subscribers: c.size(100), rate: 100, options: exact, twice: true})
	for i := range c.times(20) {
		w.fault(i%2 == 0, func() {
			c.pause(c.between(0, 300*time.Millisecond))
			if i%2 == 0 {
				node.Kill()
				node.Start()
			} else {
				n.kill()
				n.start()
			}
		})
	}
	answers := len(w.pub.Acked())
	w.finish()
	c.proof = fmt.Sprintf("%d answers to publications that were sent twice", answers)
}

// resumeIDs: whatever happened to the log, and whatever id a client resumes with, it is
// served what it requested, or a gap.
func resumeIDs(c *trial) {
	n := c.nats(c.TempDir(), false)
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: external(n.Addr, nil)})
	pub := &judge.Publisher{Addr: node.Public}
	publish := func(from, to int) {
		c.Helper()
		for i := from; i < to; i++ {
			if err := pub.Publish(c.Context(), "c0", fmt.Sprint(i)); err != nil {
				c.Fatal(err)
			}
		}
	}
	publish(0, 20)
	// ids as clients have them, from a whole replay
	ids, _ := c.replay(node, "0", 20)
	if len(ids) != 20 {
		c.Fatalf("%d ids of 20", len(ids))
	}
	epoch, _, _ := strings.Cut(ids[0], "-")
	f := func(what, id string, messages int, gap bool) {
		c.Helper()
		c.faults++
		got, gaps := c.replay(node, id, messages)
		if len(got) != messages || (gaps > 0) != gap {
			c.Errorf("%s: id %q: %d messages and %d gaps, want %d and gap %v", what, id, len(got), gaps, messages, gap)
		}
	}
	f("from the beginning", "0", 20, false)
	f("the middle", ids[9], 10, false)
	f("the future", epoch+"-999999", 0, true)
	f("another epoch", "zzzzzz-5", 0, true)
	f("garbage", "'; drop table --", 0, true)
	f("an offset past 64 bits", epoch+"-99999999999999999999", 0, true)
	f("a negative offset", epoch+"-minus1", 0, true)
	f("a wrong check", strings.Split(ids[9], ".")[0]+".zzzzzz", 0, true)

	edit := func(change func(context.Context, jetstream.Stream) error) {
		c.Helper()
		s, done := stream(c, n.Addr)
		defer done()
		if s == nil {
			c.Fatal("there is no stream")
		}
		if err := change(context.Background(), s); err != nil {
			c.Fatal(err)
		}
		node.Kill() // it has recent messages in memory, and would serve those
		node.Start()
	}
	edit(func(ctx context.Context, s jetstream.Stream) error {
		return s.Purge(ctx, jetstream.WithPurgeSequence(11))
	})
	f("trimmed below the id", ids[2], 0, true)
	f("trimmed, an id that is there", ids[14], 5, false)
	edit(func(ctx context.Context, s jetstream.Stream) error { return s.Purge(ctx) })
	f("purged", ids[14], 0, true)
	publish(20, 25)
	f("purged, published again", ids[2], 0, true)
	nc, err := natsgo.Connect("nats://" + n.Addr)
	if err != nil {
		c.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		c.Fatal(err)
	}
	if err := js.DeleteStream(context.Background(), "weir_default"); err != nil {
		c.Fatal(err)
	}
	publish(25, 28) // until the log is made anew
	f("deleted and made anew", ids[19], 0, true)
	c.proof = fmt.Sprintf("%d resumes; the stream was purged twice and deleted once", c.faults)
}

// replay resumes after id and returns the ids of the n messages that come, and how many
// gaps; with n of 0 it returns after a gap.
func (c *trial) replay(node *judge.Server, id string, n int) (ids []string, gaps int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	s := &judge.Subscriber{Addr: node.Public, Channels: channels[:1], Last: id}
	s.On = func(e judge.Event) {
		if ctx.Err() != nil {
			return // what is in the buffer still
		}
		switch e.Kind {
		case "gap":
			gaps++
		case "message":
			ids = append(ids, e.ID)
		}
		if len(ids) >= n && (n > 0 || gaps > 0) {
			cancel()
		}
	}
	_ = s.Once(ctx)
	return ids, gaps
}
