package loadgen

import "fmt"

// Split returns what n processes make together of s: connections, rate,
// concurrency, publishers and channels are shared out, everything else is the
// same. The results are put together again with Result.Merge. Fewer parts than n
// are an error, because the load would not be the same.
//
// With pubsub each part has channels of its own, since a process can account only
// for what it published itself.
func (s Spec) Split(n int) ([]Spec, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	switch {
	case n < 1:
		return nil, fmt.Errorf("split: %d processes", n)
	case s.Conns < n:
		return nil, hinted(fmt.Errorf("split: %d connections among %d processes", s.Conns, n), "use at most as many processes as connections")
	case s.Kind == PubSub && s.Channels < n:
		return nil, hinted(fmt.Errorf("split: %d channels among %d processes", s.Channels, n),
			"each process publishes to channels of its own: use at least as many channels as processes, or one process")
	case s.Kind == PubSub && s.Publishers < n:
		return nil, hinted(fmt.Errorf("split: %d publishers among %d processes", s.Publishers, n), "use at least as many publishers as processes")
	case s.Requests > 0 && s.Requests < n:
		return nil, hinted(fmt.Errorf("split: %d requests among %d processes", s.Requests, n), "use at most as many processes as requests")
	}
	parts := make([]Spec, n)
	share := func(total, i int) int { return total*(i+1)/n - total*i/n }
	for i := range parts {
		p := s
		f := float64(share(s.Conns, i)) / float64(s.Conns)
		if s.Kind == PubSub {
			p.Channels = share(s.Channels, i)
			p.FirstChannel = s.FirstChannel + s.Channels*i/n
			p.Publishers = share(s.Publishers, i)
			// A channel has its share of the publishes wherever it is.
			f = float64(p.Channels) / float64(s.Channels)
			p.Conns = share(s.Conns, i)
		}
		p.Conns = share(s.Conns, i)
		p.FirstConn = s.FirstConn + s.Conns*i/n
		p.Rate = s.Rate * f
		p.Requests = share(s.Requests, i)
		p.ConnectRate = s.ConnectRate / float64(n)
		if s.Concurrency > 0 {
			p.Concurrency = max(share(s.Concurrency, i), 1)
		}
		p.MaxInFlight = max(share(s.MaxInFlight, i), 1)
		if s.Seed != 0 {
			p.Seed = s.Seed + uint64(i)
		}
		p.Stages = make([]Stage, len(s.Stages))
		for k, st := range s.Stages {
			if st.Rate > 0 {
				st.Rate *= f
			}
			if st.Conns > 0 {
				st.Conns = max(share(st.Conns, i), 1)
			}
			p.Stages[k] = st
		}
		if len(s.Stages) == 0 {
			p.Stages = nil
		}
		parts[i] = p
	}
	return parts, nil
}

// join is what Split undone makes of two parts.
func (s *Spec) join(o Spec) {
	s.Conns += o.Conns
	s.FirstConn = min(s.FirstConn, o.FirstConn)
	s.FirstChannel = min(s.FirstChannel, o.FirstChannel)
	s.ConnectRate += o.ConnectRate
	s.Rate += o.Rate
	s.Requests += o.Requests
	s.Concurrency += o.Concurrency
	s.MaxInFlight += o.MaxInFlight
	s.Seed = min(s.Seed, o.Seed)
	if s.Kind == PubSub {
		s.Channels += o.Channels
		s.Publishers += o.Publishers
	}
	for i := range min(len(s.Stages), len(o.Stages)) {
		a, b := &s.Stages[i], o.Stages[i]
		if a.Rate > 0 && b.Rate > 0 {
			a.Rate += b.Rate
		}
		a.Conns += b.Conns
	}
}
