package loadgen

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
)

// WithDefaults returns s with zeros replaced by what they mean, but for those that
// depend on the machine or the clock: Sources, Seed and Loops.
func (s Spec) WithDefaults() Spec {
	s.Adapter = cmp.Or(s.Adapter, "plain")
	s.Arrival = cmp.Or(s.Arrival, Poisson)
	s.ConnectRate = cmp.Or(s.ConnectRate, 2000)
	s.Conns = cmp.Or(s.Conns, 1)
	s.Burst = cmp.Or(s.Burst, 10)
	s.MaxInFlight = cmp.Or(s.MaxInFlight, 10_000)
	s.Pipeline = cmp.Or(s.Pipeline, 1)
	s.Payload = cmp.Or(s.Payload, 128)
	s.Channels = cmp.Or(s.Channels, 1)
	s.Publishers = cmp.Or(s.Publishers, 4)
	s.Timeout = cmp.Or(s.Timeout, 10*time.Second)
	s.Window = cmp.Or(s.Window, time.Second)
	s.Version = cmp.Or(s.Version, "1.1")
	if s.Requests > 0 {
		s.Duration = cmp.Or(s.Duration, 24*time.Hour)
	} else {
		s.Warmup, s.Duration = cmp.Or(s.Warmup, time.Second), cmp.Or(s.Duration, 10*time.Second)
	}
	method, transport := "GET", "sse"
	if s.Body != "" {
		method = "POST"
	}
	if strings.HasPrefix(s.Target, "ws") || s.Adapter == "centrifuge" {
		transport = "ws"
	}
	s.Method, s.Transport = cmp.Or(s.Method, method), cmp.Or(s.Transport, transport)
	if s.Closed {
		s.Concurrency = cmp.Or(s.Concurrency, s.Conns)
	}
	return s
}

// exchanges reports whether arrivals are sent.
func (s *Spec) exchanges() bool { return s.Kind == HTTP || s.Kind == Echo || s.Kind == PubSub }

// streams reports whether connections are streams that the server sends on.
func (s *Spec) streams() bool { return s.Kind == PubSub || s.Kind == WebSocket || s.Kind == SSE }

// Validate returns all that is wrong with s, joined.
func (s Spec) Validate() error {
	var errs []error
	bad := func(hint, format string, args ...any) {
		err := fmt.Errorf(format, args...)
		if hint != "" {
			err = hinted(err, hint)
		}
		errs = append(errs, err)
	}
	if !slices.Contains([]Kind{HTTP, Echo, PubSub, WebSocket, SSE}, s.Kind) {
		bad("kinds are http, echo, pubsub, ws and sse", "kind %q is none", s.Kind)
	}
	s.checkTarget(bad)
	if !slices.Contains([]string{"", "plain", "weir", "mercure", "nchan", "centrifuge"}, s.Adapter) {
		bad("adapters are plain, weir, mercure, nchan and centrifuge", "adapter %q is unknown", s.Adapter)
	}
	if !slices.Contains([]Arrival{"", Poisson, Uniform, Burst}, s.Arrival) {
		bad("arrivals are poisson, uniform and burst", "arrival %q is unknown", s.Arrival)
	}
	if !slices.Contains([]string{"", "1.1", "2"}, s.Version) {
		bad("versions are 1.1 and 2", "HTTP version %q is unknown", s.Version)
	}
	if !slices.Contains([]string{"", "ws", "sse"}, s.Transport) {
		bad("transports are ws and sse", "transport %q is unknown", s.Transport)
	}
	if !slices.Contains([]string{"", "auto", "epoll", "io_uring"}, s.Engine) {
		bad("engines are auto, epoll and io_uring", "engine %q is unknown", s.Engine)
	}
	if s.Payload != 0 && s.Payload < minPayload {
		bad(fmt.Sprintf("use at least %d", minPayload), "payload of %d bytes: stream, sequence and time are in it", s.Payload)
	}
	s.checkHeaders(bad)
	s.checkNumbers(bad)
	return errors.Join(errs...)
}

func (s *Spec) checkTarget(bad func(hint, format string, args ...any)) {
	if !slices.Contains([]string{"", "tlcp", "tls13"}, s.GM) {
		bad("national cryptography is tlcp or tls13", "gm %q is neither", s.GM)
	}
	if s.GM != "" && (s.Version == "2" || !strings.HasPrefix(s.Target, "https://") && !strings.HasPrefix(s.Target, "wss://")) {
		bad("use an https:// or wss:// target and HTTP/1.1", "gm %s needs TLS and HTTP/1.1", s.GM)
	}
	want := []string{"http", "https", "ws", "wss"}
	check := func(what, text string) {
		u, err := url.Parse(strings.NewReplacer("{n}", "0", "{channel}", "0").Replace(text))
		switch {
		case err != nil:
			bad("write it as http://host:port/path, or with https, ws or wss", "%s %q is not a URL of a server: %w", what, text, err)
		case !slices.Contains(want, u.Scheme):
			bad("write it as http://host:port/path, or with https, ws or wss", "%s %q is not a URL of a server", what, text)
		case u.Host == "":
			bad("", "%s %q names no host", what, text)
		case u.User != nil:
			bad("give it as a header, Authorization: …", "%s %q has a user in it", what, text)
		}
	}
	check("target", s.Target)
	if s.Publish != "" {
		check("publish", s.Publish)
	}
	if s.Kind == PubSub && s.Publish == "" && (s.Adapter == "" || s.Adapter == "plain") {
		bad("name the URL that is published to", "pubsub over plain sockets does not know where to publish")
	}
}

func (s *Spec) checkHeaders(bad func(hint, format string, args ...any)) {
	for _, h := range s.Headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok || !http1.ValidName(name) || !http1.ValidValue(strings.TrimSpace(value)) {
			bad(`write it as "Name: value"`, "header %q", h)
		}
	}
	if s.Method != "" && !http1.ValidName(s.Method) {
		bad("", "method %q is none", s.Method)
	}
}

func (s *Spec) checkNumbers(bad func(hint, format string, args ...any)) {
	for _, n := range []struct {
		name string
		v    float64
	}{
		{"conns", float64(s.Conns)}, {"connect_rate", s.ConnectRate}, {"concurrency", float64(s.Concurrency)}, {"rate", s.Rate},
		{"burst", float64(s.Burst)}, {"max_in_flight", float64(s.MaxInFlight)}, {"timeout", float64(s.Timeout)},
		{"pipeline", float64(s.Pipeline)}, {"channels", float64(s.Channels)}, {"publishers", float64(s.Publishers)}, {"requests", float64(s.Requests)},
		{"first_conn", float64(s.FirstConn)}, {"first_channel", float64(s.FirstChannel)},
		{"warmup", float64(s.Warmup)}, {"duration", float64(s.Duration)}, {"window", float64(s.Window)}, {"loops", float64(s.Loops)},
	} {
		if n.v < 0 || math.IsNaN(n.v) || math.IsInf(n.v, 0) {
			bad("", "%s must not be %v", n.name, n.v)
		}
	}
	if s.Requests > 0 && s.Warmup > 0 {
		bad("leave the warm-up out: each request of a number counts", "%d requests and a warm-up of %v", s.Requests, s.Warmup)
	}
	if s.Publishers > maxPublishers {
		bad("", "%d publishers: at most %d", s.Publishers, maxPublishers)
	}
	if s.FirstChannel+s.Channels > maxChannels {
		bad("", "%d channels: at most %d", s.FirstChannel+s.Channels, maxChannels)
	}
	if s.Rate > maxRate {
		bad("", "rate %g: at most %g", s.Rate, maxRate)
	}
	if s.Window > 0 && s.Window < 100*time.Millisecond {
		bad("", "window %v: at least 100ms", s.Window)
	}
	if !s.exchanges() && (s.Rate > 0 || s.Closed || s.Requests > 0) {
		bad("use pubsub, echo or http for a rate", "%s only holds streams open: it sends nothing", s.Kind)
	}
	for i, st := range s.Stages {
		if st.Duration <= 0 {
			bad("", "stage %d: duration %v", i+1, st.Duration)
		}
		if st.Conns < 0 || math.IsNaN(st.Rate) || st.Rate > maxRate {
			bad("", "stage %d: rate %v, conns %d", i+1, st.Rate, st.Conns)
		}
	}
}

// checkLoad reports what is wrong with what Measure is asked for.
func (g *traffic) checkLoad(load Load, d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("measure for %v", d)
	case load.Rate < 0 || math.IsNaN(load.Rate) || load.Rate > maxRate || load.Concurrency < 0 || load.Conns < 0:
		return fmt.Errorf("load of rate %v, concurrency %d, conns %d", load.Rate, load.Concurrency, load.Conns)
	case !g.spec.exchanges() && (load.Rate > 0 || load.Concurrency > 0):
		return fmt.Errorf("%s only holds streams open: it has no rate", g.spec.Kind)
	}
	return nil
}

// roomFor looks again whether the machine can hold n connections.
func (g *Generator) roomFor(n int) error {
	s := g.spec
	s.Conns = n
	from, err := preflight(&s, g.target, machineLimits())
	if err == nil && len(from) > len(*g.sources.Load()) {
		g.sources.Store(&from)
	}
	return err
}

const (
	maxPublishers = 1 << 16
	maxChannels   = 1 << 24
	maxRate       = 10e6
)
