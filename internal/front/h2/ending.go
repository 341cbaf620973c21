package h2

// An ending is why a connection gets a GOAWAY.
type ending uint8

const (
	endIdle      ending = iota // no stream for Config.KeepAlive
	endNoRequest               // none at all within Config.HeadTimeout
	endDrain                   // Server.Drain
	endClient                  // the client has sent one
	endFlood                   // too much of something, see flood
	endError                   // the client broke a rule of the protocol
	endings
)

var endingNames = [endings]string{"idle", "no_request", "drain", "client", "flood", "error"}

// String returns the reason as metrics have it.
func (e ending) String() string { return endingNames[e] }

// endingOf is that of a connection that fails with code.
func endingOf(code Code) ending {
	switch code {
	case NoError:
		return endNoRequest
	case EnhanceYourCalm:
		return endFlood
	}
	return endError
}

// count counts the connection's end, once.
func (h *conn) count(why ending) {
	if h.flags&leaving == 0 {
		h.loopState.counters.endings[why].Add(1)
	}
}
