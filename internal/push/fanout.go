package push

// fanout estimates what deliveries take a loop: a part for every send to a subscriber,
// and one for every message in it. What a run brings for a channel goes to a subscriber in
// one send, so that the second message of a channel costs much less than the first.
//
// It is a line through what was seen lately: the time of a send over the messages in it.
type fanout struct {
	send, message float64 // nanoseconds

	ratio, time        float64 // means
	spread, covariance float64
}

const (
	// How quickly the line follows: to more, to less, and to less where the whole is not
	// known.
	moreGain, lessGain, maybeGain = 0.2, 0.05, 0.01
	// What is thought until something was measured, in nanoseconds.
	usualSend, usualMessage = 3000, 100
)

func newFanout() fanout {
	return fanout{send: usualSend, message: usualMessage, ratio: 1, time: usualSend + usualMessage}
}

// learn takes what sends of deliveries took together. Where the kernel sends later it is
// not known of a loop that slept afterwards what that took: not whole.
func (f *fanout) learn(took int64, sends, deliveries uint64, whole bool) {
	n := float64(min(max(sends, 1), deliveries))
	ratio, time := float64(deliveries)/n, float64(took)/n
	expected := f.send + ratio*f.message
	time = min(time, 4*expected) // more is another process on the processor
	gain := lessGain
	switch {
	case time > expected:
		gain = moreGain
	case !whole:
		gain = maybeGain
	}
	dr, dt := ratio-f.ratio, time-f.time
	f.ratio += gain * dr
	f.time += gain * dt
	f.spread = (1 - gain) * (f.spread + gain*dr*dr)
	f.covariance = (1 - gain) * (f.covariance + gain*dr*dt)
	if f.spread > 0.01*f.ratio*f.ratio && f.spread > 0.1 {
		f.message = f.covariance / f.spread
	}
	f.message = min(max(f.message, 10), f.time/f.ratio)
	f.send = max(f.time-f.ratio*f.message, 0)
}

// A batch is what was published since the shard last ran.
type batch struct {
	owed int64 // nanoseconds that its deliveries will take
	most int64 // of it the sends for the one channel that most follow
	seen [8]string
	n    int
}

func (b *batch) reset() {
	clear(b.seen[:b.n])
	b.owed, b.most, b.n = 0, 0, 0
}

// add takes a job in and returns what it adds.
func (b *batch) add(f *fanout, job Job) int64 {
	n, channel := job.Fanout()
	if n == 0 {
		return 0
	}
	fanoutCost := int64(float64(n) * f.message)
	if channel == "" || !b.has(channel) {
		sends := int64(float64(n) * f.send)
		b.most = max(b.most, sends)
		fanoutCost += sends
	}
	b.owed += fanoutCost
	return fanoutCost
}

// has reports whether channel was seen, and notes it while there is room.
func (b *batch) has(channel string) bool {
	for i := range b.n {
		if b.seen[i] == channel {
			return true
		}
	}
	if b.n < len(b.seen) {
		b.seen[b.n] = channel
		b.n++
	}
	return false
}
