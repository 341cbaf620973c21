package mercure

import (
	"context"
	"errors"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
)

// A role is what a token is presented for: each may have keys of its own.
type role uint8

const (
	publisher role = iota
	subscriber
	roles
)

// A grant is what a token allows, once it is proved.
type grant struct {
	identity *auth.Identity
	// reader is the same to the second at which the token ends: a stream is not to live
	// on the leeway that a token is given when it comes.
	reader *auth.Identity
	claims *protocol.Claims
	// raw are the claims as they came, of a token of dialect; nil without a token.
	raw     []byte
	dialect protocol.Dialect
	publish *protocol.Set
	read    *protocol.Set
}

// anonymous is the grant of a client without a token.
var anonymous = &grant{identity: auth.Anonymous, reader: auth.Anonymous, claims: &protocol.Claims{}}

// A verifier finds out what a token allows. Any goroutine.
type verifier struct {
	// Fixed in New.
	s    *Server
	base string // that selectors are read beside

	selectors selectorCache
}

// A credential is a token as it came.
type credential struct {
	token  string
	cookie bool
	has    bool // there is one, be it empty
}

// credential picks the one token of a request: the header wins over all, then draft
// 07's query parameter, then the cookie. d is the dialect of the request; for a
// publication it is not known before the token is.
func (v *verifier) credential(r socket.Request, queryToken string, d protocol.Dialect, known bool) credential {
	if h := r.Header("Authorization"); h != "" {
		token, _ := protocol.Bearer(h)
		return credential{token: token, has: true}
	}
	if queryToken != "" && v.s.conf().cfg.QueryToken.On() && v.s.serve.Draft07 && (!known || d == protocol.Draft07) {
		return credential{token: queryToken, has: true}
	}
	field := r.Header("Cookie")
	if _, access := r.Origin(); field == "" || access != auth.OriginTrusted {
		return credential{} // what a browser adds by itself counts for pages that are trusted
	}
	names := []string{v.s.conf().cfg.Cookie08, v.s.conf().cfg.Cookie}
	if known && d == protocol.Draft07 {
		slices.Reverse(names)
	}
	for _, name := range names {
		if (name == v.s.conf().cfg.Cookie08 && !v.s.serve.Draft08) || (name == v.s.conf().cfg.Cookie && !v.s.serve.Draft07) {
			continue
		}
		if token := protocol.Cookie(field, name); token != "" {
			return credential{token: token, cookie: true, has: true}
		}
	}
	return credential{}
}

// mayPublishFrom reports whether a page that sent a cookie may publish: the browser
// sends cookies for every page.
func (v *verifier) mayPublishFrom(r socket.Request) bool {
	from := r.Header("Origin")
	if from == "" {
		from = origin(r.Header("Referer"))
	}
	return from != "" && (slices.Contains(v.s.conf().cfg.PublishOrigins, from) || slices.Contains(v.s.conf().cfg.PublishOrigins, "*"))
}

// origin returns the origin of a URL; "" if it has none.
func origin(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// dialect is the token's, among those that are served.
func (v *verifier) dialect(header []byte) (protocol.Dialect, bool) {
	d := protocol.DialectOf(header)
	switch {
	case d == protocol.Draft08 && !v.s.serve.Draft08:
		return protocol.Draft07, true // such a type says nothing in draft 07
	case d == protocol.Draft07 && !v.s.serve.Draft07:
		return d, false
	}
	return d, true
}

// authenticator returns whose keys are to prove a token.
func (v *verifier) authenticator(d protocol.Dialect, claims []byte, as role) (*auth.Authenticator, bool) {
	if d == protocol.Draft08 && len(v.s.conf().issuers) > 0 {
		a, ok := v.s.conf().issuers[protocol.Issuer(claims)]
		return a, ok
	}
	return v.s.conf().keys[as], true
}

// cached returns what a token allows if that was found out before. It never waits.
func (v *verifier) cached(token string, as role) (*grant, bool) {
	g, a := v.s.conf().grants.get(grantKey{token, as})
	if g == nil {
		return nil, false
	}
	id, ok := a.CachedFor(auth.ForAny, []byte(token)) // read has checked what it is for
	if !ok || id != g.identity {
		return nil, false
	}
	return g, true
}

// verify returns what a token allows. It may wait for keys.
func (v *verifier) verify(ctx context.Context, token string, as role) (*grant, *refusal) {
	header, claims, ok := protocol.Split(token)
	if !ok {
		return nil, badToken
	}
	d, ok := v.dialect(header)
	if !ok {
		return nil, badToken
	}
	a, ok := v.authenticator(d, claims, as)
	if !ok {
		return nil, badToken
	}
	want := auth.ForMercure
	if d == protocol.Draft08 {
		want = auth.ForAny // its aud decides: read
	}
	id, err := a.VerifyFor(ctx, want, token, time.Now())
	switch {
	case errors.Is(err, auth.ErrKeysUnavailable):
		return nil, unreachable
	case err != nil:
		v.s.log.Debug("token refused", "err", err)
		return nil, badToken
	}
	g, err := v.read(id, claims, d)
	switch {
	case errors.Is(err, errPatterns):
		return nil, unreachable
	case err != nil:
		v.s.log.Debug("token refused", "err", err)
		return nil, badToken
	}
	v.s.conf().grants.put(grantKey{token, as}, g, a)
	return g, nil
}

// read makes a grant of claims that are proved.
func (v *verifier) read(id *auth.Identity, claims []byte, d protocol.Dialect) (*grant, error) {
	c, err := protocol.ParseClaims(claims, d)
	if err != nil {
		return nil, err
	}
	if d == protocol.Draft08 {
		switch {
		case c.Expires.IsZero():
			return nil, errors.New("exp is missing")
		case v.s.conf().cfg.Resource == "" || !slices.Contains(c.Audience, v.s.conf().cfg.Resource):
			return nil, errors.New("aud does not name this hub")
		}
	}
	g := &grant{identity: id, reader: id, claims: c, raw: claims, dialect: d}
	if time.Now().Before(c.Expires) {
		g.reader = id.Until(c.Expires)
	}
	if g.publish, err = v.compileAll(c.Publish); err != nil {
		return nil, err
	}
	if g.read, err = v.compileAll(c.Subscribe); err != nil {
		return nil, err
	}
	return g, nil
}

func (v *verifier) compile(sel protocol.Selector) (*protocol.Compiled, error) {
	return v.selectors.get(sel, v.base)
}

func (v *verifier) compileAll(list []protocol.Selector) (*protocol.Set, error) {
	cs := make([]*protocol.Compiled, 0, len(list))
	for _, sel := range list {
		c, err := v.compile(sel)
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return protocol.NewSet(cs), nil
}

// errPatterns is for a selector past Config.MaxPatternBytes.
var errPatterns = errors.New("too many patterns")

// A selectorCache shares compiled selectors, for many subscribers have the same, and
// bounds what all of them take. It keeps two generations: when the young one is full it
// becomes the old one, and what was in that is forgotten here. What is in use counts
// until it has been collected.
type selectorCache struct {
	most int64
	used atomic.Int64

	mu         sync.Mutex
	young, old map[protocol.Selector]*protocol.Compiled
	cost       int64 // of young
}

func (c *selectorCache) get(sel protocol.Selector, base string) (*protocol.Compiled, error) {
	cost := int64(sel.Cost())
	if cost == 0 {
		return protocol.Compile(sel, base)
	}
	if found := c.find(sel); found != nil {
		return found, nil
	}
	if c.used.Add(cost) > c.most {
		c.used.Add(-cost)
		return nil, errPatterns
	}
	made, err := protocol.Compile(sel, base)
	if err != nil {
		c.used.Add(-cost)
		return nil, err
	}
	runtime.AddCleanup(made, func(cost int64) { c.used.Add(-cost) }, cost)
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.young[sel]; found != nil {
		return found, nil
	}
	c.keep(sel, made, cost)
	return made, nil
}

// keep puts a selector in the young generation. The caller holds mu.
func (c *selectorCache) keep(sel protocol.Selector, made *protocol.Compiled, cost int64) {
	if c.cost += cost; c.young == nil || c.cost > c.most/8 {
		c.old, c.young, c.cost = c.young, make(map[protocol.Selector]*protocol.Compiled), cost
	}
	c.young[sel] = made
}

// find returns what is compiled already, or nil.
func (c *selectorCache) find(sel protocol.Selector) *protocol.Compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.young[sel]; found != nil {
		return found
	}
	found := c.old[sel]
	if found != nil {
		c.keep(sel, found, int64(sel.Cost()))
	}
	return found
}

// grantCacheSize bounds each of the two generations of a grantCache.
const grantCacheSize = 16 << 10

type grantKey struct {
	token string
	as    role
}

type grantEntry struct {
	grant *grant
	by    *auth.Authenticator
}

// A grantCache spares reading the claims of a token again. Whether the token still
// holds is for the authenticator to say.
type grantCache struct {
	mu         sync.Mutex
	young, old map[grantKey]grantEntry
}

func (c *grantCache) get(k grantKey) (*grant, *auth.Authenticator) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.young[k]
	if !ok {
		e = c.old[k]
	}
	return e.grant, e.by
}

func (c *grantCache) put(k grantKey, g *grant, by *auth.Authenticator) {
	k.token = strings.Clone(k.token)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= grantCacheSize {
		c.old, c.young = c.young, make(map[grantKey]grantEntry)
	}
	c.young[k] = grantEntry{g, by}
}
