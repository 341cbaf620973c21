package tlsterm

import (
	"cmp"
	"crypto/tls"
	"slices"
	"sync"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// established is what a handshake agreed on.
type established struct {
	version, suite uint16
	group          string // of the key exchange; empty: a session resumed without one
}

// A SuiteCount is how many handshakes finished with a cipher suite.
type SuiteCount struct {
	Protocol, Suite string // "TLS 1.3" and IANA's name, or "TLCP" and the standard's
	Count           uint64
}

// A GroupCount is how many handshakes finished with a key exchange.
type GroupCount struct {
	Group string // such as X25519MLKEM768
	Count uint64
}

// A tally counts finished handshakes by what they agreed on: a few dozen kinds at most,
// since both sides of each are from a closed list. Any goroutine.
type tally struct {
	mu    sync.Mutex
	count map[established]uint64
}

func (t *tally) add(e established) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count == nil {
		t.count = map[established]uint64{}
	}
	t.count[e]++
}

func (t *tally) suites() (list []SuiteCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sums := map[[2]string]uint64{}
	for e, n := range t.count {
		sums[[2]string{protocolName(e.version), suiteName(e.version, e.suite)}] += n
	}
	for k, n := range sums {
		list = append(list, SuiteCount{k[0], k[1], n})
	}
	slices.SortFunc(list, func(a, b SuiteCount) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Suite, b.Suite))
	})
	return list
}

func (t *tally) groups() (list []GroupCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sums := map[string]uint64{}
	for e, n := range t.count {
		if e.group != "" {
			sums[e.group] += n
		}
	}
	for k, n := range sums {
		list = append(list, GroupCount{k, n})
	}
	slices.SortFunc(list, func(a, b GroupCount) int { return cmp.Compare(a.Group, b.Group) })
	return list
}

func protocolName(version uint16) string {
	if version == gm.VersionTLCP {
		return "TLCP"
	}
	return tls.VersionName(version)
}

func suiteName(version, id uint16) string {
	if s := gm.SuiteOf(version, id); s != nil {
		return s.Name
	}
	return tls.CipherSuiteName(id)
}

// groupName is empty for a session of TLS 1.2 that resumes: it has no key exchange.
func groupName(id tls.CurveID) string {
	if id == 0 {
		return ""
	}
	return id.String()
}
