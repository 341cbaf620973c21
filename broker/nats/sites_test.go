package nats

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func startAtSite(t *testing.T, p *natstest.Sites, here string, ns hub.Namespace, deliver func(*hub.Message)) *Broker {
	t.Helper()
	cfg := Config{URL: p.A.ClientURL(), Sites: Sites{Here: here, Other: "b", Home: "a", Detect: hub.Duration(2 * time.Second)}}
	if here == "b" {
		cfg.URL, cfg.Sites.Other = p.B.ClientURL(), "a"
	}
	b := newBroker(t, cfg)
	t.Cleanup(func() { _ = b.Close() })
	if err := b.Start(t.Context(), []hub.Namespace{ns}, deliver); err != nil {
		t.Fatal(err)
	}
	return b
}

// A node comes to know of several changes of sites when the last one has happened, which may have led back to the site
// that it follows. It delivers everything once, in the order of the log, what was stored in an epoch that it has never
// seen as well; and what retention has removed meanwhile is reported.
func TestANodeThatIsBehindFollowsEveryChangeOfSites(t *testing.T) {
	t.Parallel()
	for _, history := range []int{100, 2} {
		t.Run(fmt.Sprintf("history_size %d", history), func(t *testing.T) {
			t.Parallel()
			followsEveryChange(t, hub.Namespace{Name: "x", HistorySize: history}.WithDefaults())
		})
	}
}

func followsEveryChange(t *testing.T, ns hub.Namespace) {
	p := natstest.TwoSites(t)
	ignore := func(*hub.Message) {}
	at := map[string]*Broker{"a": startAtSite(t, p, "a", ns, ignore), "b": startAtSite(t, p, "b", ns, ignore)}
	got, gate := make(chan *hub.Message, 1024), make(chan struct{})
	behind := startAtSite(t, p, "a", ns, func(m *hub.Message) {
		if m.Channel == "x:gate" {
			<-gate
			return
		}
		got <- m
	})
	channels := []string{"x:1", "x:2"}
	for _, channel := range append(channels, "x:gate") {
		if _, err := behind.Subscribe(t.Context(), &ns, channel, 0); err != nil {
			t.Fatal(err)
		}
	}
	published, last := 0, hub.Position{}
	publish := func(b *Broker, channel string) {
		id := fmt.Sprint(published)
		trial.Eventually(t, "a publish to be acknowledged", func() bool {
			done := make(chan error, 1)
			b.Publish(&ns, hub.Publication{Channel: channel, Data: []byte(id), IdempotencyKey: id}, func(p hub.Position, err error) {
				last = p
				done <- err
			})
			return <-done == nil
		})
		published++
	}
	publish(at["a"], "x:gate")
	stop := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() { // those who resume meanwhile
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_, _ = behind.Top(t.Context(), &ns)
			}
		}
	})
	const each = 8
	for _, site := range []string{"a", "b", "a"} {
		if SiteLogs(at[site])[0].Leads != site {
			trial.Eventually(t, "site "+site+" to have a copy and to lead", func() bool { return Promote(t.Context(), at[site]) == nil })
		}
		for i := range each {
			publish(at[site], channels[i%len(channels)])
		}
	}
	close(stop)
	close(gate)
	looks.Wait()
	delivered, epochs, missing, since := 0, map[string]bool{}, map[string]uint64{}, uint64(1)
	for since < last.Offset {
		var m *hub.Message
		select {
		case m = <-got:
		case <-time.After(trial.Patience):
			t.Fatalf("%d messages and %v missing, the last one at %d of %d", delivered, missing, since, last.Offset)
		}
		epochs[m.Epoch] = true
		switch {
		case m.Missing:
			missing[m.Channel] = m.Offset
			continue
		case m.Offset <= since:
			t.Errorf("message %s at %d comes after %d", m.Data, m.Offset, since)
		}
		delivered++
		since = m.Offset
	}
	removed := ns.HistorySize < 3*each/len(channels)
	if !removed && (delivered != 3*each || len(missing) > 0) {
		t.Errorf("%d messages of %d, and missing %v", delivered, 3*each, missing)
	}
	if removed && len(missing) != len(channels) {
		t.Errorf("%d messages of %d, and missing on %v: retention has removed some of each channel", delivered, 3*each, missing)
	}
	if len(epochs) < 2 || !epochs[last.Epoch] {
		t.Errorf("messages of epochs %v; the last one was published in %s", epochs, last.Epoch)
	}
}

// NATS queues publishes. What a site has received when it gives a log up is stored after its stream takes no more: it is
// not left behind there.
func TestASwitchWaitsForWhatNATSHasQueued(t *testing.T) {
	t.Parallel()
	p := natstest.TwoSites(t)
	ns := hub.Namespace{Name: "x"}.WithDefaults()
	s := startAtSite(t, p, "a", ns, func(*hub.Message) {}).all()["x"]
	nc, err := natsgo.Connect(p.A.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	last := func() uint64 { return s.lookAt(t.Context(), "a").last }
	open := s.lookAt(t.Context(), "a").config
	shut := open
	shut.Subjects = []string{"weir.shut_a.x"}
	const messages = 2000
	late := uint64(0)
	for range 3 {
		for range messages {
			if err := nc.Publish("weir.put_a.x.1", make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil { // NATS has received them
			t.Fatal(err)
		}
		if err := s.site.put(t.Context(), "a", "UPDATE", shut); err != nil {
			t.Fatal(err)
		}
		before := last()
		if err := s.site.drained(t.Context(), "a", shut.Subjects[0]); err != nil {
			t.Fatal(err)
		}
		end := last()
		late += end - before
		time.Sleep(100 * time.Millisecond) // in which nothing is to be stored
		if now := last(); now != end {
			t.Errorf("the stream has got %d messages more after it was said to have all", now-end)
		}
		if err := s.site.put(t.Context(), "a", "UPDATE", open); err != nil {
			t.Fatal(err)
		}
	}
	if n := last(); n != 3*messages {
		t.Errorf("%d messages are stored of %d", n, 3*messages)
	}
	if late == 0 {
		t.Error("nothing was stored after a change of subjects, so that this shows nothing")
	}
	t.Logf("%d messages were stored after a change of subjects", late)
}

// While a silent site is waited for, the copy may get messages: what counts is how far it is when it becomes the log.
func TestACopyIsLookedAtAgainBeforeItBecomesTheLog(t *testing.T) {
	t.Parallel()
	p := natstest.TwoSites(t)
	ns := hub.Namespace{Name: "x"}.WithDefaults()
	a := startAtSite(t, p, "a", ns, func(*hub.Message) {})
	s := startAtSite(t, p, "b", ns, func(*hub.Message) {}).all()["x"]
	var stale *siteLook
	trial.Eventually(t, "a copy", func() bool {
		stale = s.lookAt(t.Context(), "b")
		return stale.follows(s.epochNow())
	})
	done := make(chan error, 1)
	a.Publish(&ns, hub.Publication{Channel: "x:1", Data: []byte("later")}, func(_ hub.Position, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	trial.Eventually(t, "the copy to have the message", func() bool { return s.lookAt(t.Context(), "b").last == 1 })
	other := *stale
	other.config.Metadata = maps.Clone(stale.config.Metadata)
	other.config.Metadata[metaCopies] = "another"
	if err := s.site.promote(t.Context(), &other, true); err == nil {
		t.Error("a copy of another epoch than the one that was looked at becomes the log")
	}
	if err := s.site.promote(t.Context(), stale, true); err != nil {
		t.Fatal(err)
	}
	if l := s.lookAt(t.Context(), "b"); l.base != 1 || len(l.from) != 1 || l.from[0].Offset != 1 {
		t.Errorf("the log starts an epoch after %d and continues %v; the copy had 1 message", l.base, l.from)
	}
	if err := s.site.promote(t.Context(), stale, true); err != nil {
		t.Errorf("one that another node has made the log already: %v", err)
	}
}

// A node answers with the end of the log at the site that leads it, also before it is notified of the change.
func TestTheEndOfTheLogIsThatOfTheSiteThatLeads(t *testing.T) {
	t.Parallel()
	p := natstest.TwoSites(t)
	ns := hub.Namespace{Name: "x"}.WithDefaults()
	at := map[string]*Broker{"a": startAtSite(t, p, "a", ns, func(*hub.Message) {}), "b": startAtSite(t, p, "b", ns, func(*hub.Message) {})}
	for _, site := range []string{"b", "a", "b"} {
		trial.Eventually(t, "site "+site+" to have a copy and to lead", func() bool { return Promote(t.Context(), at[site]) == nil })
		want := at[site].all()["x"].lookAt(t.Context(), site).epoch
		for name, b := range at {
			if top, err := b.Top(t.Context(), &ns); err != nil || top.Epoch != want {
				t.Errorf("site %s leads epoch %s; a node at site %s answers %v, %v", site, want, name, top, err)
			}
		}
	}
}

// A publish while a node follows the log to the site that took over is answered in the epoch in which that site has stored
// it: one who resumes after it would get a gap that is none.
func TestAPublishIsAnsweredInTheEpochThatHasIt(t *testing.T) {
	t.Parallel()
	p := natstest.TwoSites(t)
	ns := hub.Namespace{Name: "x"}.WithDefaults()
	other := startAtSite(t, p, "b", ns, func(*hub.Message) {})
	got, gate := make(chan *hub.Message, 16), make(chan struct{})
	node := startAtSite(t, p, "a", ns, func(m *hub.Message) {
		got <- m
		<-gate
	})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	if _, err := node.Subscribe(t.Context(), &ns, "x:1", 0); err != nil {
		t.Fatal(err)
	}
	publish := func(text string) chan hub.Position {
		done := make(chan hub.Position, 1)
		node.Publish(&ns, hub.Publication{Channel: "x:1", Data: []byte(text)}, func(p hub.Position, err error) {
			if err != nil {
				t.Errorf("publish %s: %v", text, err)
			}
			done <- p
		})
		return done
	}
	delivered := func(text string) *hub.Message {
		t.Helper()
		select {
		case m := <-got:
			if string(m.Data) != text {
				t.Fatalf("%s is delivered, want %s", m.Data, text)
			}
			return m
		case <-time.After(trial.Patience):
			t.Fatalf("%s is not delivered", text)
		}
		return nil
	}
	<-publish("1")
	delivered("1") // and the node is busy with it
	before := <-publish("2")
	trial.Eventually(t, "site b to have a copy and to lead", func() bool { return Promote(t.Context(), other) == nil })
	s := node.all()["x"]
	trial.Eventually(t, "the node to notice it", func() bool { return s.site.ahead() != nil })
	gate <- struct{}{}
	if m := delivered("2"); s.site.site() != "b" || m.Epoch != before.Epoch {
		t.Fatalf("a message of before is delivered in epoch %s when site %s leads, so that this shows nothing", m.Epoch, s.site.site())
	}
	o, done := node.out, publish("3")
	trial.Eventually(t, "the publish to be answered or to wait", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(done) > 0 || len(o.queue) > 0 && s.bridge.kept == o.round
	})
	open()
	switch at, m := <-done, delivered("3"); {
	case m.Epoch == before.Epoch:
		t.Error("the site that took over has the epoch of the other one")
	case at.Epoch != m.Epoch || at.Offset != m.Offset:
		t.Errorf("answered with %v, and delivered as %s-%d", at, m.Epoch, m.Offset)
	}
}

// A publish that the log has already is answered with its place in the epoch that the node follows: not before that is verified.
func TestARecognizedPublishWaitsForTheEpoch(t *testing.T) {
	t.Parallel()
	s := startAtSite(t, natstest.TwoSites(t), "a", hub.Namespace{Name: "x"}.WithDefaults(), func(*hub.Message) {}).all()["x"]
	p := &pending{s: s, p: hub.Publication{Channel: "x:1", IdempotencyKey: "k"}}
	k := newStoredKeys(s, 7, 7, true)
	k.complete, k.ids[p.p.KeyID()] = true, 7
	s.keys.Store(k)
	s.b.out.mu.Lock()
	defer s.b.out.mu.Unlock()
	if seq, known := recognize(s, p); !known || seq != 7 {
		t.Errorf("place %d, known %v; want 7", seq, known)
	}
	s.checked.Store(0)
	if seq, known := recognize(s, p); known {
		t.Errorf("while the log is to be checked: place %d", seq)
	}
}

// A log that was removed at both sites is made anew where it was led, with another epoch, and so is its copy; nodes that run
// publish and deliver as with one site.
func TestALogThatWasRemovedAtBothSitesIsMadeAnew(t *testing.T) {
	t.Parallel()
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprintf("both_sites %v", both), func(t *testing.T) {
			t.Parallel()
			p := natstest.TwoSites(t)
			ns := hub.Namespace{Name: "x", BothSites: both}.WithDefaults()
			at, got := map[string]*Broker{}, map[string]chan *hub.Message{}
			for _, site := range []string{"a", "b"} {
				c := make(chan *hub.Message, 1024)
				got[site] = c
				at[site] = startAtSite(t, p, site, ns, func(m *hub.Message) { c <- m })
				if _, err := at[site].Subscribe(t.Context(), &ns, "x:1", 0); err != nil {
					t.Fatal(err)
				}
			}
			publish := func(from, text string) (at2 hub.Position) {
				trial.Eventually(t, "a publish to be acknowledged", func() bool {
					done := make(chan error, 1)
					at[from].Publish(&ns, hub.Publication{Channel: "x:1", Data: []byte(text)}, func(p hub.Position, err error) {
						at2 = p
						done <- err
					})
					return <-done == nil
				})
				return at2
			}
			delivered := func(text string, want hub.Position) {
				t.Helper()
				for site, c := range got {
					for end := time.After(trial.Patience); ; {
						var m *hub.Message
						select {
						case m = <-c:
						case <-end:
							t.Fatalf("%s is not delivered at site %s", text, site)
						}
						if string(m.Data) == text {
							if m.Epoch != want.Epoch {
								t.Errorf("%s is delivered at site %s in epoch %s, want %s", text, site, m.Epoch, want.Epoch)
							}
							break
						}
					}
				}
			}
			for _, leads := range []string{"a", "b"} {
				if SiteLogs(at[leads])[0].Leads != leads {
					trial.Eventually(t, "site "+leads+" to lead", func() bool { return Promote(t.Context(), at[leads]) == nil })
				}
				before := publish("a", "before "+leads)
				delivered("before "+leads, before)
				w := at["a"].all()["x"].site
				for _, site := range []string{leads, w.cfg.away(leads)} {
					if err := w.remove(t.Context(), site); err != nil {
						t.Fatal(err)
					}
				}
				after := publish("b", "after "+leads)
				if after.Epoch == before.Epoch {
					t.Errorf("the log that was made anew has the epoch of the removed one, %s", after.Epoch)
				}
				delivered("after "+leads, after)
				from := publish("a", "from a at "+leads)
				delivered("from a at "+leads, from)
				trial.Eventually(t, "the other site to have a copy", func() bool {
					l := w.s.lookAt(t.Context(), leads)
					return l.leadsLog() && w.s.lookAt(t.Context(), w.cfg.away(leads)).follows(l.epoch)
				})
			}
		})
	}
}
