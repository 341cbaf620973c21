package mercure

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
)

// serveSubscriptions lists who subscribes, on all nodes.
func (x *directory) serveSubscriptions(r socket.Request) {
	d := x.s.serve.Default()
	if !r.AdmitPage() {
		x.s.refuse(r, d, badOrigin)
		return
	}
	cred := x.s.tokens.credential(r, queryToken(r), d, false)
	if !cred.has {
		x.s.refuse(r, d, noToken)
		return
	}
	if header, _, ok := protocol.Split(cred.token); ok {
		if of, ok := x.s.tokens.dialect(header); ok {
			d = of
		}
	}
	path, tag := r.Path(), r.Header("If-None-Match")
	var a listing
	r.Do(func(ctx context.Context) { a = x.list(ctx, cred.token, path, d) }, func() {
		switch {
		case a.why != nil:
			x.s.refuse(r, d, a.why)
		case strings.Contains(tag, a.tag) || tag == "*":
			r.Answer(http.StatusNotModified, "", nil, a.fields...)
		default:
			r.Answer(http.StatusOK, a.contentType, a.body, a.fields...)
		}
	})
}

// A listing is an answer of the subscription API.
type listing struct {
	why         *refusal
	body        []byte
	contentType string
	tag         string
	fields      []socket.Field
}

// list makes the answer for a path, as it came. It may wait.
func (x *directory) list(ctx context.Context, token, path string, d protocol.Dialect) listing {
	g, why := x.s.tokens.verify(ctx, token, subscriber)
	if why != nil {
		return listing{why: why}
	}
	place, ok := protocol.ParsePlace(path, x.s.conf().cfg.Path, d)
	if !x.mayList(g, path) && !(ok && x.mayList(g, x.canonical(place, d))) {
		return listing{why: notGranted}
	}
	if !ok {
		return listing{why: &refusal{status: http.StatusNotFound}}
	}
	// The cursor is read before the list: anyone who resumes from it may see an event twice,
	// but misses none.
	top, err := x.s.deps.Hub.Top(ctx, x.s.conf().cfg.Namespace)
	if err != nil {
		return listing{why: unreachable}
	}
	lastID := cursorOf(top)
	subs := x.subscriptions(place, d)
	a := listing{contentType: "application/ld+json", tag: `"` + lastID + `"`}
	switch {
	case place.Subscriber == "":
		a.body = protocol.Documents(d, path, lastID, x.s.conf().cfg.Path, subs)
	case len(subs) == 0:
		return listing{why: &refusal{status: http.StatusNotFound}}
	default:
		a.body = subs[0].Document(x.s.conf().cfg.Path, lastID)
	}
	a.fields = []socket.Field{{Name: "ETag", Value: a.tag}, {Name: "Cache-Control", Value: "private, must-revalidate"}}
	if d == protocol.Draft08 {
		a.contentType = "application/json"
		l := protocol.Link{Hub: cmp.Or(x.s.conf().cfg.PublicURL, x.s.conf().cfg.Path), LastID: lastID, Type: protocol.EventType, ContentType: "application/json"}
		a.fields = append(a.fields, socket.Field{Name: "Link", Value: l.String()})
	}
	return a
}

// canonical is the one spelling of a place, in which its events are published.
func (x *directory) canonical(p protocol.Place, d protocol.Dialect) string {
	path := x.s.conf().cfg.Path + "/subscriptions"
	if p.Selector == nil {
		return path
	}
	if d == protocol.Draft08 {
		path += "/" + p.Selector.Kind.String()
	}
	path += "/" + protocol.Escape(p.Selector.Text)
	if p.Subscriber != "" {
		path += "/" + protocol.Escape(p.Subscriber)
	}
	return path
}

// subscriptions returns those at a place, in a steady order.
func (x *directory) subscriptions(p protocol.Place, d protocol.Dialect) (out []protocol.Subscription) {
	take := func(channel string) {
		for _, m := range x.s.deps.Presence.Members(channel, 0) {
			if p.Subscriber != "" && m.Client != p.Subscriber {
				continue
			}
			if sub, ok := subscriptionOf(m); ok {
				out = append(out, sub)
			}
		}
	}
	if p.Selector != nil {
		take(crowd(d, *p.Selector))
	} else {
		for _, c := range x.s.deps.Presence.Channels(func(ch string) bool { return strings.HasPrefix(ch, crowdPrefix) }) {
			take(c.Channel)
		}
	}
	slices.SortFunc(out, func(a, b protocol.Subscription) int {
		return cmp.Or(cmp.Compare(a.Subscriber, b.Subscriber), cmp.Compare(a.Selector.Text, b.Selector.Text), cmp.Compare(a.Selector.Kind, b.Selector.Kind))
	})
	return out
}
