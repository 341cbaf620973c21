package judge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// A Publisher publishes through the server's API and knows what was
// acknowledged. Its methods may be called from any goroutine.
type Publisher struct {
	// Addr of the public listener.
	Addr string
	// Others are listeners at which a publication is repeated, one after the other with Addr,
	// until it is acknowledged; nil: at Addr alone.
	Others []string
	// Key gives a payload its conflation key; nil means none.
	Key func(payload string) string
	// Twice publishes everything once more after it was acknowledged, with the same
	// idempotency key: another answer than the first is an error.
	Twice bool
	// Writers is how many publications may be under way; 0 means 8.
	Writers int
	// Dial, if set, makes a connection for each of Run's writers, instead of the shared ones to Addr. One that ends is
	// made again for the next try.
	Dial func(ctx context.Context) (net.Conn, error)

	mu      sync.Mutex
	acked   []Acked
	refused map[int]int // answers by status, other than 200
}

// Acked is a publication the server has answered with 200.
type Acked struct {
	Channel, Payload, Epoch string
	Offset                  uint64
	// At is when it was answered, Began when it was sent first.
	At, Began time.Time
}

// Refused returns how many answers had the status.
func (p *Publisher) Refused(status int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[status]
}

var publishing = &http.Client{
	Timeout:   5 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64},
}

// Publish publishes payload, a string, and repeats it with the same idempotency
// key until it is acknowledged or ctx is done. An answer that no repetition can
// change is an error.
func (p *Publisher) Publish(ctx context.Context, channel, payload string) error {
	return p.publish(ctx, p.try, channel, payload)
}

// publish is Publish by requests that send makes.
func (p *Publisher) publish(ctx context.Context, send func(ctx context.Context, addr string, body []byte) (Acked, int, error), channel, payload string) error {
	key := fmt.Sprintf("%x", sha256.Sum256([]byte(channel+"/"+payload)))
	publication := map[string]any{"channel": channel, "data": payload, "idempotency_key": key}
	if p.Key != nil {
		publication["key"] = p.Key(payload)
	}
	body, err := json.Marshal(publication)
	if err != nil {
		return err
	}
	began := time.Now()
	all := append([]string{p.Addr}, p.Others...)
	for n, again := 0, false; ; n++ {
		ack, status, err := send(ctx, all[n%len(all)], body)
		if err == nil && status != http.StatusOK {
			p.mu.Lock()
			if p.refused == nil {
				p.refused = map[int]int{}
			}
			p.refused[status]++
			p.mu.Unlock()
		}
		switch {
		case err == nil && status == http.StatusOK:
			ack.Channel, ack.Payload, ack.Began, ack.At = channel, payload, began, time.Now()
			p.mu.Lock()
			p.acked = append(p.acked, ack)
			p.mu.Unlock()
			if !p.Twice || again {
				return nil
			}
			again = true
			continue
		case err == nil && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests && status != http.StatusInsufficientStorage:
			return fmt.Errorf("publish on %s: status %d", channel, status)
		case ctx.Err() != nil:
			return fmt.Errorf("publish on %s: not acknowledged: %w (%w)", channel, ctx.Err(), err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond): // the pace of trying again
		}
	}
}

func (p *Publisher) try(ctx context.Context, addr string, body []byte) (ack Acked, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/api/publish", bytes.NewReader(body))
	if err != nil {
		return ack, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-API-Key", APIKey)
	resp, err := publishing.Do(req)
	if err != nil {
		return ack, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ack, resp.StatusCode, err
	}
	return parseAck(text, resp.StatusCode)
}

// parseAck reads the answer to a publication.
func parseAck(text []byte, status int) (ack Acked, _ int, err error) {
	if status != http.StatusOK {
		return ack, status, nil
	}
	var answer struct {
		Result *struct {
			Epoch  string
			Offset uint64
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Result == nil {
		return ack, http.StatusTeapot, fmt.Errorf("publish: answer %.80q: %w", text, err)
	}
	return Acked{Epoch: answer.Result.Epoch, Offset: answer.Result.Offset}, status, nil
}

// Run publishes on channels round-robin from several goroutines, about perSecond
// publications in all, until ctx is done; what is under way then is still seen
// to its acknowledgement within grace. Payloads are unique: prefix and a number.
func (p *Publisher) Run(ctx context.Context, prefix string, channels []string, perSecond int, grace time.Duration) error {
	type job struct{ channel, payload string }
	jobs := make(chan job)
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	defer stop()
	var wg sync.WaitGroup
	errs := make(chan error, cmp.Or(p.Writers, 8))
	for range cap(errs) {
		wg.Go(func() {
			send := p.try
			if p.Dial != nil {
				l := &line{dial: p.Dial}
				defer l.close()
				send = l.try
			}
			for j := range jobs {
				if err := p.publish(work, send, j.channel, j.payload); err != nil {
					errs <- err
					cancel()
					return
				}
			}
		})
	}
	each := max(perSecond/1000, 1) // so many a tick: a busy machine keeps no shorter ones
	tick := time.NewTicker(time.Second * time.Duration(each) / time.Duration(perSecond))
	defer tick.Stop()
	for n := 0; ctx.Err() == nil && work.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-work.Done():
		case <-tick.C:
		}
		for range each {
			select {
			case <-ctx.Done():
			case <-work.Done():
			case jobs <- job{channels[n%len(channels)], fmt.Sprintf("%s%d", prefix, n)}:
			}
			n++
		}
	}
	close(jobs)
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// CloseIdle closes the publishers' idle connections, at the end of TestMain.
func CloseIdle() {
	publishing.CloseIdleConnections()
	HTTP.CloseIdleConnections()
}

// Count returns how many publications were acknowledged so far.
func (p *Publisher) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.acked)
}

// Acked returns what was acknowledged so far, in the order of the answers.
func (p *Publisher) Acked() []Acked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Acked(nil), p.acked...)
}

// AckedSince returns what was acknowledged after t, in the order of the answers.
func (p *Publisher) AckedSince(t time.Time) (all []Acked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := len(p.acked)
	for i > 0 && p.acked[i-1].At.After(t.Add(-time.Second)) { // answers are noted a little out of order
		i--
	}
	for _, a := range p.acked[i:] {
		if a.At.After(t) {
			all = append(all, a)
		}
	}
	return all
}
