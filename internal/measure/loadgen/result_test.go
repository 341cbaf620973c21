package loadgen

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func someHistogram(seed uint64, n int) *hdrhistogram.Histogram {
	h := newHistogram(fineDigits)
	r := rand.New(rand.NewPCG(seed, 1))
	for range n {
		_ = h.RecordValue(int64(r.ExpFloat64() * 1500))
	}
	return h
}

func someWindow(i int) Window {
	return Window{
		Start: epoch.Add(time.Duration(i) * time.Second), Length: time.Second, Load: Load{Rate: 100, Conns: 7},
		Conns: 7, Counts: Counts{Offered: 100, Sent: 98, Completed: 90, Drained: 5, Dropped: 2, Waited: 3, Reconnects: 1,
			Errors: map[string]uint64{"timeout": 2, "status 503": 1}},
		Times:   Times{Response: someHistogram(uint64(i), 90), Service: someHistogram(uint64(i)+100, 90), Lag: someHistogram(uint64(i)+200, 100)},
		Batches: []Batch{{MeanResponse: 0.001, Completed: 90, InFlight: 0.2}}, InFlight: 0.2,
		Delivery: &Delivery{Published: 90, Expected: 630, Received: 628, Lost: 2, Reach: 0.5, Closes: map[string]uint64{"1012": 1}},
		BytesIn:  1000, BytesOut: 2000, Generator: GeneratorState{CPU: 0.5, GCPauses: time.Millisecond}, Host: Host{Steal: 0.1, Busy: 0.5},
	}
}

func sameWindow(t *testing.T, got, want *Window) {
	t.Helper()
	for _, h := range []struct {
		name string
		a, b **hdrhistogram.Histogram
	}{
		{"response", &got.Response, &want.Response}, {"service", &got.Service, &want.Service}, {"lag", &got.Lag, &want.Lag},
		{"publish", &got.Publish, &want.Publish}, {"connect", &got.Connect, &want.Connect},
	} {
		if (*h.a == nil) != (*h.b == nil) || *h.a != nil && !(*h.a).Equals(*h.b) {
			t.Errorf("%s: the histograms differ", h.name)
		}
	}
	a, b := got.clone(), want.clone()
	for _, w := range []*Window{&a, &b} {
		w.Response, w.Service, w.Lag, w.Publish, w.Connect = nil, nil, nil, nil, nil
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("got  %+v\nwant %+v", a, b)
	}
}

func someResult() *Result {
	r := &Result{Version: Version, Spec: Spec{Kind: HTTP, Target: "http://127.0.0.1:1/"}, Started: epoch, Machine: LocalMachine()}
	k := keeper{r: r}
	for i := range 3 {
		k.window(someWindow(i))
	}
	return r
}

func TestResultComesBackFromJSON(t *testing.T) {
	r := someResult()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadResult(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if got.Version != 1 || !got.Started.Equal(r.Started) || !reflect.DeepEqual(got.Spec, r.Spec) || !reflect.DeepEqual(got.Machine, r.Machine) {
		t.Errorf("got %+v, want %+v", got, r)
	}
	sameWindow(t, &got.Total, &r.Total)
	for i := range r.Windows {
		sameWindow(t, &got.Windows[i], &r.Windows[i])
	}
}

func TestReadResultSaysWhatItCannotRead(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if _, err := ReadResult(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	f(`{"version":2}`, "version 2")
	f(`{"windows":[]}`, "no version")
	f(`nonsense`, "invalid character")
	f(`{"version":1,"total":{"response_us":{"hdr":"AAAA"}}}`, "response_us")
}

func TestHDRLogIsReadByTheLibrary(t *testing.T) {
	r := someResult()
	var log bytes.Buffer
	if err := r.WriteHDR(&log); err != nil {
		t.Fatal(err)
	}
	reader := hdrhistogram.NewHistogramLogReader(&log)
	n := map[string]int64{}
	for {
		h, err := reader.NextIntervalHistogram()
		if err != nil {
			t.Fatal(err)
		}
		if h == nil {
			break
		}
		n[h.Tag()] += h.TotalCount()
	}
	if want := map[string]int64{"response": 270, "service": 270, "lag": 300}; !reflect.DeepEqual(n, want) {
		t.Errorf("counts by tag %v, want %v", n, want)
	}
}

func TestMergeInAnyOrderIsTheSame(t *testing.T) {
	a, b, c := someWindow(0), someWindow(1), someWindow(2)
	var x, y Window
	for _, w := range []*Window{&a, &b, &c} {
		x.Merge(w)
	}
	for _, w := range []*Window{&c, &b, &a} {
		y.Merge(w)
	}
	for _, w := range []*Window{&x, &y} { // sums of floats, in another order
		w.Conns, w.InFlight = round(w.Conns), round(w.InFlight)
		w.Host.Steal, w.Load.Rate = round(w.Host.Steal), round(w.Load.Rate)
	}
	sameWindow(t, &x, &y)
	if x.Offered != 300 || x.Length != 3*time.Second || x.Load.Rate != 100 || len(x.Batches) != 3 || x.Errors["timeout"] != 6 || x.Response.TotalCount() != 270 {
		t.Errorf("merged: %+v", x)
	}
	sameWindow(t, &a, ptr(someWindow(0))) // not changed
}

func round(f float64) float64 { return float64(int64(f*1e6+0.5)) / 1e6 }

func ptr[T any](v T) *T { return &v }

func TestMergedHistogramIsThatOfAllValues(t *testing.T) {
	var whole, merged *hdrhistogram.Histogram = newHistogram(fineDigits), nil
	for i := range 4 {
		h := someHistogram(uint64(i), 500)
		for _, bar := range h.Distribution() {
			if bar.Count > 0 {
				_ = whole.RecordValues(bar.From, bar.Count)
			}
		}
		merged = mergeHistogram(merged, h)
	}
	if !merged.Equals(whole) {
		t.Error("merging is not the same as recording everything in one")
	}
}

func TestProcessesBesideEachOtherAdd(t *testing.T) {
	a, b := someResult(), someResult()
	if err := a.Merge(b); err != nil {
		t.Fatal(err)
	}
	w := &a.Total
	if w.Length != 3*time.Second || w.Load.Rate != 200 || w.Conns != 14 || w.Offered != 600 || w.Generator.CPU != 1 || w.Host.Busy != 0.5 || len(w.Batches) != 3 {
		t.Errorf("merged: %+v", w)
	}
	if len(a.Windows) != 3 || a.Windows[1].Offered != 200 || w.Batches[0].Completed != 180 || w.Batches[0].InFlight != 0.4 {
		t.Errorf("windows: %+v", a.Windows)
	}
	b.Spec.Target = "http://127.0.0.1:2/"
	if err := a.Merge(b); err == nil {
		t.Error("results of different targets were merged")
	}
}

func TestAVeryLongRunKeepsItsWindowsBounded(t *testing.T) {
	r := &Result{}
	k := keeper{r: r}
	const n = 5000
	for i := range n {
		k.window(Window{Start: epoch.Add(time.Duration(i) * time.Second), Length: time.Second, Counts: Counts{Offered: 1}})
	}
	var sum uint64
	for i := range r.Windows {
		sum += r.Windows[i].Offered
		if i > 0 && !r.Windows[i].Start.Equal(r.Windows[i-1].end()) {
			t.Fatalf("window %d does not follow the one before", i)
		}
	}
	if len(r.Windows) > maxWindows || sum != n || r.Total.Length != n*time.Second {
		t.Errorf("%d windows of %d arrivals, %v", len(r.Windows), sum, r.Total.Length)
	}
}

func TestSplitSharesEverythingOut(t *testing.T) {
	s := Spec{
		Kind: PubSub, Target: "http://127.0.0.1:1/", Adapter: "weir", Conns: 1001, Rate: 900, Channels: 10, Publishers: 7, MaxInFlight: 1000,
		Stages: []Stage{{Duration: time.Second, Rate: 100, Conns: 2000}},
	}
	parts, err := s.Split(3)
	if err != nil {
		t.Fatal(err)
	}
	whole := parts[0]
	whole.Stages = append([]Stage(nil), whole.Stages...)
	channels := map[int]bool{}
	for i, p := range parts {
		if err := p.Validate(); err != nil {
			t.Errorf("part %d: %v", i, err)
		}
		for c := range p.Channels {
			channels[c+p.FirstChannel] = true
		}
		if i > 0 {
			whole.join(p)
		}
	}
	if len(channels) != 10 {
		t.Errorf("channels %v, want 0 to 9 once each", channels)
	}
	if whole.Conns != 1001 || round(whole.Rate) != 900 || whole.Publishers != 7 || whole.Channels != 10 || whole.MaxInFlight != 1000 ||
		round(whole.Stages[0].Rate) != 100 || whole.Stages[0].Conns != 2000 {
		t.Errorf("put together again: %+v", whole)
	}
	f := func(n int, change func(*Spec)) {
		t.Helper()
		x := s
		change(&x)
		if _, err := x.Split(n); err == nil {
			t.Errorf("%d parts of %+v", n, x)
		}
	}
	f(0, func(*Spec) {})
	f(11, func(*Spec) {})
	f(8, func(*Spec) {})
	f(2, func(s *Spec) { s.Conns = 1 })
}
