package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/client"
)

// until runs the demo against s until enough says so, or for 20 seconds.
func until(t *testing.T, s *server, o Options, enough func(Summary) bool) (Summary, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if o.APIKey == "" {
		o.APIKey = s.key
	}
	o.BaseURL = s.URL
	o.Rate = 2000
	r, err := newRunner(o)
	if err != nil {
		t.Fatal(err)
	}
	// The condition is looked at after every publication, whatever came of it.
	r.publish = func(ctx context.Context, p client.Publication) (client.Position, error) {
		at, err := r.client.Publish(ctx, p)
		if enough(r.summary()) {
			cancel()
		}
		return at, err
	}
	return r.do(ctx)
}

func published(n uint64) func(Summary) bool {
	return func(s Summary) bool { return s.Published >= n }
}

func TestEverythingPublishedIsReceivedOnce(t *testing.T) {
	s := serve(t)
	sum, err := until(t, s, Options{}, published(500))
	if err != nil {
		t.Fatal(err)
	}
	if sum.Published < 500 || sum.Delivered != sum.Published || sum.Lost+sum.Repeated+sum.Errors != 0 || !sum.AllDelivered() {
		t.Errorf("%+v", sum)
	}
	if sum.P50 <= 0 || sum.P99 < sum.P50 || sum.P99 > 5*time.Second || sum.Duration <= 0 {
		t.Errorf("latency %v, %v in %v", sum.P50, sum.P99, sum.Duration)
	}
}

func TestServerRestartCausesNoLossOrRepeat(t *testing.T) {
	s := serve(t)
	sum, err := until(t, s, Options{}, func(sum Summary) bool {
		switch {
		case sum.Published >= 200 && sum.Errors == 0:
			s.away.Store(true)
			s.cutAll()
		case sum.Errors > 20:
			s.away.Store(false)
		}
		return sum.Published >= 600 && sum.Reconnects > 0
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Errors == 0 || sum.Reconnects == 0 || sum.Delivered != sum.Published || !sum.AllDelivered() {
		t.Errorf("%+v", sum)
	}
}

func TestLostAnswerIsRetriedWithoutARepeat(t *testing.T) {
	s := serve(t)
	s.muteNext.Store(10)
	sum, err := until(t, s, Options{}, published(300))
	if err != nil {
		t.Fatal(err)
	}
	if sum.Errors == 0 || sum.Delivered != sum.Published || !sum.AllDelivered() {
		t.Errorf("%+v", sum)
	}
}

func TestPlantedLossAndRepeatAreCounted(t *testing.T) {
	f := func(copies int, want func(Summary) bool) {
		t.Helper()
		s := serve(t)
		s.plant = func(n int) int {
			if n == 50 {
				return copies
			}
			return 1
		}
		sum, err := until(t, s, Options{}, published(300))
		if err != nil {
			t.Fatal(err)
		}
		if !want(sum) || sum.AllDelivered() {
			t.Errorf("%d copies of one message: %+v", copies, sum)
		}
	}
	f(0, func(s Summary) bool { return s.Lost == 1 && s.Repeated == 0 })
	f(2, func(s Summary) bool { return s.Lost == 0 && s.Repeated == 1 })
	f(3, func(s Summary) bool { return s.Lost == 0 && s.Repeated == 2 })
}

func TestRefusalForGoodEndsTheRunInWords(t *testing.T) {
	s := serve(t)
	_, err := until(t, s, Options{APIKey: "wrong"}, published(1))
	answer, ok := errors.AsType[*client.Error](err)
	if !ok || answer.Status != http.StatusUnauthorized || answer.Hint != "see the log" || !strings.Contains(err.Error(), "this key is not known") {
		t.Errorf("got %v", err)
	}
}

func TestRunWaitsForAServerThatIsNotThereYet(t *testing.T) {
	s := serve(t)
	s.away.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan Summary)
	go func() {
		sum, err := Run(ctx, Options{BaseURL: s.URL + "/", APIKey: s.key, Progress: func(sum Summary) {
			if s.away.Swap(false); sum.Delivered > 0 {
				cancel()
			}
		}})
		if err != nil {
			t.Error(err)
		}
		done <- sum
	}()
	select {
	case sum := <-done:
		if !sum.AllDelivered() {
			t.Errorf("%+v", sum)
		}
	case <-time.After(20 * time.Second):
		t.Error("nothing flowed within 20 s")
	}
	cancel()
}

func TestQuantilesOfLatency(t *testing.T) {
	follower := newFollower(nil, "r", slog.New(slog.DiscardHandler))
	if got := follower.quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	seq := 0
	arrive := func(after time.Duration) {
		seq++
		data := fmt.Appendf(nil, `{"run":"r","seq":%d,"t":0}`, seq)
		follower.message(&client.Message{Channel: "market:sp500", Data: data}, time.UnixMilli(0).Add(after))
	}
	for i := range 1000 {
		arrive(time.Duration(i+1) * time.Millisecond)
	}
	f := func(q float64, want time.Duration) {
		t.Helper()
		if got := follower.quantile(q); got < want || float64(got) > float64(want)*1.01 {
			t.Errorf("quantile(%v) = %v, want %v to %v", q, got, want, want*101/100)
		}
	}
	f(0.50, 500*time.Millisecond)
	f(0.99, 990*time.Millisecond)
	f(1, time.Second)
	arrive(-time.Second) // clocks of two machines
	arrive(1000 * time.Hour)
	f(1, time.Hour)
	if n := follower.seen().delivered; n != 1002 {
		t.Errorf("%d delivered", n)
	}
}
