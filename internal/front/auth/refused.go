package auth

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// refusedPages remembers which origins were logged lately, so that a page that tries
// again and again does not fill the log.
type refusedPages struct {
	mu       sync.Mutex
	logged   map[string]time.Time
	unlogged uint64 // refusals of further origins since the last line
}

const (
	refusedPagesEvery = time.Minute
	// maxRefusedPages bounds the origins that are logged in refusedPagesEvery.
	maxRefusedPages = 64
	maxOriginLogged = 255
)

// due reports whether a refusal is to be logged now, and how many went unlogged because
// there were too many origins.
func (r *refusedPages) due(origin string, now time.Time) (unlogged uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, known := r.logged[origin]; known && now.Sub(at) < refusedPagesEvery {
		return 0, false
	}
	if len(r.logged) >= maxRefusedPages {
		for o, at := range r.logged {
			if now.Sub(at) >= refusedPagesEvery {
				delete(r.logged, o)
			}
		}
		if len(r.logged) >= maxRefusedPages {
			r.unlogged++
			return 0, false
		}
	}
	if r.logged == nil {
		r.logged = make(map[string]time.Time)
	}
	r.logged[origin] = now
	unlogged, r.unlogged = r.unlogged, 0
	return unlogged, true
}

// LogRefusedOrigin logs that p was refused at path, with what to configure to let it
// in: at most once a minute for each origin. The browser reports the reason neither to
// the page nor to its user. An empty hint means the line of auth.allowed_origins; it is
// for pages that may not connect at all. It never waits.
func (a *ruleSet) LogRefusedOrigin(p Page, path []byte, hint string) {
	a.counts.origins.Add(1)
	origin := string(p.Origin[:min(len(p.Origin), maxOriginLogged)])
	unlogged, ok := a.pages.due(origin, a.now())
	if !ok {
		return
	}
	_, valid := parseOrigin(p.Origin)
	allowed := a.rules.Load().cfg.AllowedOrigins
	switch {
	case hint != "":
	case origin == "null":
		hint = allowLine(allowed, origin) + " lets in pages opened from a file, and sandboxed frames of any site"
	case valid:
		hint = allowLine(allowed, origin)
	default:
		hint = "it is not an origin and cannot be allowed"
	}
	a.log.Warn("origin refused", "origin", origin, "host", string(p.Host[:min(len(p.Host), maxOriginLogged)]), "peer", p.Peer,
		"path", string(path[:min(len(path), maxOriginLogged)]), "hint", hint, "unlogged", unlogged)
}

// allowLine is the line of the configuration file that allows origin as well.
func allowLine(allowed []string, origin string) string {
	list := append(slices.Clone(allowed), origin)
	if len(list) > maxRefusedPages { // too long for a log line
		return "add '" + origin + "' to auth.allowed_origins"
	}
	return "auth: {allowed_origins: ['" + strings.Join(list, "', '") + "']}"
}
