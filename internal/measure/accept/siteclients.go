package accept

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The load on two sites.
const (
	siteRate    = 500  // publications per second
	siteCancels = 0.05 // the share of them that is cancelled
	siteWorkers = 64   // publications under way at most
	siteReaders = 8    // subscribers, half of them first at each site
	// sitePatience is for a publication to be acknowledged, and for the last message to come.
	sitePatience = 30 * time.Second
)

var siteChannels = []string{"c0", "c1", "c2", "c3"}

// siteClients publish and subscribe at two sites, and know what they were answered.
type siteClients struct {
	// Fixed.
	name  string // begins the payloads, which are unique
	seed  uint64
	sites [2]string // addresses
	web   *http.Client

	cancel     context.CancelFunc
	closing    chan struct{} // no more publications
	stopping   sync.Once
	pubs, subs sync.WaitGroup
	readers    []*siteReader // their fields belong to their goroutines until these have ended, but for first

	mu        sync.Mutex
	offered   int
	cancelled uint64
	failed    uint64
	attempts  uint64
	lost      []string          // never acknowledged
	acked     map[string]uint64 // payload → offset
	twice     []string          // offsets of two payloads
	at        map[uint64]string
	first     map[string]time.Time // epoch → its first acknowledgement
	times     []time.Time          // of the acknowledgements
}

func newSiteClients(trial int, sites ...string) *siteClients {
	c := &siteClients{
		name: fmt.Sprintf("t%d-", trial), seed: uint64(trial), sites: [2]string(sites), closing: make(chan struct{}), cancel: func() {},
		web:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: siteWorkers}},
		acked: map[string]uint64{}, at: map[uint64]string{}, first: map[string]time.Time{},
	}
	for i := range siteReaders {
		c.readers = append(c.readers, &siteReader{c: c, site: i % 2, last: "0", seen: map[string]bool{}, at: map[uint64]string{}, first: map[string]time.Time{}})
	}
	return c
}

func (c *siteClients) start(ctx context.Context) {
	ctx, c.cancel = context.WithCancel(ctx)
	for _, r := range c.readers {
		c.subs.Go(func() { r.run(ctx) })
	}
	jobs := make(chan int, int(sitePatience.Seconds())*siteRate)
	c.pubs.Go(func() {
		defer close(jobs)
		for n, began := 0, time.Now(); ; n++ {
			wait := time.NewTimer(time.Until(began.Add(time.Duration(n) * time.Second / siteRate)))
			select {
			case <-c.closing:
				wait.Stop()
				return
			case <-ctx.Done():
				wait.Stop()
				return
			case <-wait.C:
			}
			jobs <- n
		}
	})
	for range siteWorkers {
		c.pubs.Go(func() {
			for n := range jobs {
				c.publish(ctx, n)
			}
		})
	}
}

// payload is the n-th one.
func (c *siteClients) payload(n int) string { return c.name + strconv.Itoa(n) }

// publish publishes at one site and the other until it is acknowledged, or cancelled.
func (c *siteClients) publish(ctx context.Context, n int) {
	rng := rand.New(rand.NewPCG(c.seed, uint64(n)))
	patience, cancels := sitePatience, rng.Float64() < siteCancels
	if cancels {
		patience = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	payload := c.payload(n)
	c.mu.Lock()
	c.offered++
	c.mu.Unlock()
	var err error
	for try := n; ; try++ {
		err = c.attempt(ctx, c.sites[try%2], siteChannels[n%len(siteChannels)], payload)
		c.mu.Lock()
		if c.attempts++; err != nil && ctx.Err() == nil {
			c.failed++
		}
		c.mu.Unlock()
		if err == nil {
			return
		}
		if !sleep(ctx, 10*time.Millisecond) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancels {
		c.cancelled++
	} else {
		c.lost = append(c.lost, fmt.Sprintf("%s: %v", payload, err))
	}
}

// attempt publishes at a site, and notes the answer.
func (c *siteClients) attempt(ctx context.Context, address, channel, payload string) error {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	body := fmt.Sprintf(`{"channel":%q,"data":%q,"idempotency_key":%q}`, channel, payload, payload)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/api/publish", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("X-API-Key", apiKey)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.web.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, bytes.TrimSpace(b))
	}
	var a struct {
		Result struct {
			Epoch  string
			Offset uint64
		}
	}
	if err := json.Unmarshal(b, &a); err != nil || a.Result.Offset == 0 {
		return fmt.Errorf("answer %.80q: %w", b, err)
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, ok := c.at[a.Result.Offset]; ok && other != payload {
		c.twice = append(c.twice, fmt.Sprintf("offset %d was answered to %s and %s", a.Result.Offset, other, payload))
	}
	c.acked[payload], c.at[a.Result.Offset] = a.Result.Offset, payload
	if _, ok := c.first[a.Result.Epoch]; !ok {
		c.first[a.Result.Epoch] = now
	}
	c.times = append(c.times, now)
	return nil
}

// epochs are those in which something was acknowledged.
func (c *siteClients) epochs() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := map[string]bool{}
	for e := range c.first {
		m[e] = true
	}
	return m
}

// earliest is the first time of an epoch that before does not have.
func earliest(first map[string]time.Time, before map[string]bool) (at time.Time, ok bool) {
	for e, t := range first {
		if !before[e] && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	return at, ok
}

// acknowledged waits for an acknowledgement in an epoch that before does not have.
func (c *siteClients) acknowledged(ctx context.Context, before map[string]bool, end time.Time) (time.Time, bool) {
	for {
		c.mu.Lock()
		at, ok := earliest(c.first, before)
		c.mu.Unlock()
		if ok || time.Now().After(end) || !sleep(ctx, 2*time.Millisecond) {
			return at, ok
		}
	}
}

// received waits for a message of such an epoch at each subscriber, and returns when they came; a
// subscriber without one has the time until which was waited.
func (c *siteClients) received(ctx context.Context, before map[string]bool, end time.Time) (times []time.Time) {
	for _, r := range c.readers {
		for {
			r.mu.Lock()
			at, ok := earliest(r.first, before)
			r.mu.Unlock()
			if !ok && time.Now().Before(end) && sleep(ctx, 2*time.Millisecond) {
				continue
			}
			if !ok {
				at = end
			}
			times = append(times, at)
			break
		}
	}
	return times
}

// pause is the longest time since began between two acknowledgements.
func (c *siteClients) pause(began time.Time) (longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := began
	for _, t := range c.times {
		if t.After(last) {
			longest, last = max(longest, t.Sub(last)), t
		}
	}
	return longest
}

// end ends the publishers when everything is answered, publishes a last message and waits until all
// subscribers have it.
func (c *siteClients) end(ctx context.Context) {
	c.stopping.Do(func() { close(c.closing) })
	c.pubs.Wait()
	ctx, cancel := context.WithTimeout(ctx, sitePatience)
	defer cancel()
	for try := 0; ; try++ {
		if c.attempt(ctx, c.sites[try%2], siteChannels[0], c.name+"end") == nil || !sleep(ctx, 10*time.Millisecond) {
			break
		}
	}
	done := make(chan struct{})
	go func() { c.subs.Wait(); close(done) }() // ends with the subscribers, which stop ends
	select {
	case <-done:
	case <-ctx.Done():
	}
	c.stop()
}

// stop ends all clients. It may be called twice.
func (c *siteClients) stop() {
	c.stopping.Do(func() { close(c.closing) })
	c.cancel()
	c.pubs.Wait()
	c.subs.Wait()
	c.web.CloseIdleConnections()
}

// verdict counts what must not have happened. The clients have ended.
func (c *siteClients) verdict(ev *Evidence) (acked, received int) {
	ev.count("cancelled", c.cancelled, uint64(c.offered))
	ev.count("failed", c.failed, c.attempts)
	ev.count("unanswered", uint64(len(c.lost)), uint64(c.offered), c.lost...)
	ev.count("wrong", uint64(len(c.twice)), uint64(len(c.acked)), c.twice...)
	for _, r := range c.readers {
		r.verdict(ev)
		received += len(r.seen)
	}
	return len(c.acked), received
}

// A siteReader follows all channels by SSE and resumes at the other site when a connection ends.
type siteReader struct {
	c    *siteClients
	site int
	last string // id

	seen                              map[string]bool
	at                                map[uint64]string // offset → payload
	high                              uint64
	gaps                              int
	repeated, reordered, odd, notices []string
	done                              bool

	mu    sync.Mutex
	first map[string]time.Time // epoch → its first message
}

func (r *siteReader) run(ctx context.Context) {
	for ctx.Err() == nil && !r.done {
		if err := r.follow(ctx); err != nil && ctx.Err() == nil {
			r.site = 1 - r.site
		}
		if !r.done {
			sleep(ctx, 10*time.Millisecond)
		}
	}
}

// follow reads one connection to its end.
func (r *siteReader) follow(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.c.sites[r.site]+"/sse?"+url.Values{"channel": siteChannels}.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Last-Event-ID", r.last)
	res, err := r.c.web.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	var kind, id, data string
	scan := bufio.NewScanner(res.Body)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		field, value, _ := strings.Cut(scan.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case scan.Text() == "":
			if id != "" {
				r.last = id
			}
			r.event(kind, data)
			if r.done {
				return nil
			}
			kind, id, data = "", "", ""
		case field == "event":
			kind = value
		case field == "id":
			id = value
		case field == "data":
			data += value
		}
	}
	return errors.Join(scan.Err(), io.EOF)
}

// event notes one event.
func (r *siteReader) event(kind, data string) {
	if kind == "gap" {
		r.gaps++
		r.notices = append(r.notices, data)
		return
	}
	if kind != "" || data == "" {
		return // an id alone, or the end of the stream in words
	}
	var m struct {
		Channel, ID, Data string
		Offset            uint64
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		r.odd = append(r.odd, fmt.Sprintf("%.80q: %v", data, err))
		return
	}
	epoch, _, _ := strings.Cut(m.ID, "-")
	r.mu.Lock()
	if _, ok := r.first[epoch]; !ok {
		r.first[epoch] = time.Now()
	}
	r.mu.Unlock()
	switch {
	case r.seen[m.Data]:
		r.repeated = append(r.repeated, m.Data)
	case m.Offset <= r.high:
		r.reordered = append(r.reordered, fmt.Sprintf("%s at %d came after %d", m.Data, m.Offset, r.high))
	case !strings.HasPrefix(m.Data, r.c.name):
		r.odd = append(r.odd, fmt.Sprintf("%.80q was not sent", m.Data))
	}
	r.seen[m.Data], r.at[m.Offset], r.high = true, m.Data, max(r.high, m.Offset)
	r.done = m.Data == r.c.name+"end"
}

// verdict compares what came with what was acknowledged. All have ended.
func (r *siteReader) verdict(ev *Evidence) {
	var lost, wrong []string
	for payload, offset := range r.c.acked {
		if !r.seen[payload] {
			lost = append(lost, fmt.Sprintf("%s, acknowledged at %d, where %q came", payload, offset, r.at[offset]))
		} else if got := r.at[offset]; got != payload {
			wrong = append(wrong, fmt.Sprintf("%s was acknowledged at %d, where %q came", payload, offset, got))
		}
	}
	slices.Sort(lost)
	wrong = append(wrong, r.odd...)
	all := uint64(len(r.c.acked))
	ev.count("lost", uint64(len(lost)), all, lost...)
	ev.count("repeated", uint64(len(r.repeated)), uint64(len(r.seen)), r.repeated...)
	ev.count("reordered", uint64(len(r.reordered)), uint64(len(r.seen)), r.reordered...)
	ev.count("wrong", uint64(len(wrong)), all, wrong...)
	ev.count("gaps", uint64(r.gaps), uint64(len(r.seen)), r.notices...)
}
