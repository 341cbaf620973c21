package mercure_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/cluster/clustertest"
	"github.com/weir-gateway/weir/internal/front/socket/nodetest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A doc is what is said of a subscription, or of several, in either draft.
type doc struct {
	Context       string `json:"@context"`
	ID            string `json:"id"`
	Type          string `json:"type"`
	Topic         string `json:"topic"`
	MatchType     string `json:"match_type"`
	Match         string `json:"match"`
	Subscriber    string `json:"subscriber"`
	Active        bool   `json:"active"`
	Payload       any    `json:"payload"`
	LastEventID   string `json:"lastEventID"`
	Subscriptions []doc  `json:"subscriptions"`
}

func read(t *testing.T, text string) (d doc) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return d
}

func (d doc) String() string {
	return strings.TrimSpace(fmt.Sprintln(d.Type, d.Topic+d.Match, d.MatchType, d.Active, d.Payload))
}

func TestSubscriptionsAreReported(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		const events = hubPath + "/subscriptions/"
		watch07 := n.subscribe("topic="+q(events+"{topic}/{subscriber}"), "Authorization", "Bearer "+token07(t, subSecret, "subscribe", events+"{topic}/{subscriber}"))
		own := read(t, watch07.Next().data) // its own
		expect(t, "own", own.Topic, events+"{topic}/{subscriber}")
		watch08 := n.subscribe("match_urlpattern="+q(events+":type/:match/:subscriber"), "Authorization", "Bearer "+token08(t, subSecret, "subscribe", "pattern "+events+":type/:match/:subscriber"))
		own = read(t, watch08.Next().data)
		expect(t, "own", own.Match, events+":type/:match/:subscriber")
		curious := n.subscribe("topic=*") // without a grant: it sees none of it
		read(t, watch07.Next().data)

		st := n.subscribe("topic="+q("https://example.com/{x}")+"&topic=b&topic=b", "Authorization", "Bearer "+token07(t, subSecret, "subscribe", "x"))
		began := []doc{read(t, watch07.Next().data), read(t, watch07.Next().data)}
		expect(t, "began", began[0], `Subscription https://example.com/{x}  true map[user:1]`)
		expect(t, "began", began[1], `Subscription b  true map[user:1]`)
		expect(t, "id", began[0].ID, events+"https%3A%2F%2Fexample.com%2F%7Bx%7D/"+strings.ReplaceAll(began[0].Subscriber, ":", "%3A"))
		expect(t, "subscriber", strings.HasPrefix(began[0].Subscriber, "urn:uuid:"), true)
		expect(t, "one subscriber", began[1].Subscriber, began[0].Subscriber)
		st.Stop()
		expect(t, "ended", read(t, watch07.Next().data), `Subscription https://example.com/{x}  false map[user:1]`)
		expect(t, "ended", read(t, watch07.Next().data), `Subscription b  false map[user:1]`)

		st = n.subscribe("match=/foo&match_urlpattern="+q("/a/:b"), "Authorization", "Bearer "+token08(t, subSecret, "subscribe", "/foo"))
		e := watch08.Next()
		expect(t, "type", e.kind, "mercure")
		expect(t, "began", read(t, e.data), `subscription /foo exact true map[user:8]`)
		expect(t, "began", read(t, watch08.Next().data), `subscription /a/:b urlpattern true <nil>`)
		st.Stop()
		expect(t, "ended", read(t, watch08.Next().data), `subscription /foo exact false map[user:8]`)
		n.publish("topic=x&data=end")
		expect(t, "what another client sees", curious.Next().data, "end")
	})
}

func TestSubscriptionsAreListed(t *testing.T) {
	both(t, func(t *testing.T, s settings) {
		n := start(t, s)
		const api = hubPath + "/subscriptions"
		all07 := []string{"Authorization", "Bearer " + token07(t, subSecret, "subscribe", "*")}
		all08 := []string{"Authorization", "Bearer " + token08(t, subSecret, "subscribe", "*")}
		get := func(path string, header ...string) (int, doc) {
			t.Helper()
			status, h, text := n.request("GET", path, "", header...)
			if status != 200 {
				return status, doc{}
			}
			d := read(t, text)
			if d.Type == "Subscriptions" || d.Type == "Subscription" {
				expect(t, "content type", h.Get("Content-Type"), "application/ld+json")
				expect(t, "context", d.Context, "https://mercure.rocks/")
				expect(t, "tag", h.Get("ETag"), `"`+d.LastEventID+`"`)
			} else {
				expect(t, "content type", h.Get("Content-Type"), "application/json")
				expect(t, "link", strings.Contains(h.Get("Link"), `rel="mercure"; last-event-id="`+strings.Trim(h.Get("ETag"), `"`)+`"`), true)
			}
			return status, d
		}
		status, d := get(api, all07...)
		expect(t, "none", fmt.Sprint(status, " ", d.ID, " ", len(d.Subscriptions)), "200 "+api+" 0")
		one := n.subscribe("topic=a&topic=" + q("/b/{c}"))
		two := n.subscribe("match=a&match_urlpattern=" + q("/b/:c"))
		_, _ = one, two
		trial.Eventually(t, "four subscriptions", func() bool { _, d := get(api, all07...); return len(d.Subscriptions) == 4 })
		_, d = get(api+"/a", all07...)
		expect(t, "of a topic", fmt.Sprint(d.Subscriptions), "[Subscription a  true <nil>]")
		id := d.Subscriptions[0].ID
		_, d = get(id, all07...)
		expect(t, "one", fmt.Sprint(d, d.ID == id), "Subscription a  true <nil> true")
		_, d = get(api+"/exact/a", all08...)
		expect(t, "of a matcher", fmt.Sprint(d.Type, " ", d.Subscriptions), "subscriptions [subscription a exact true <nil>]")
		_, d = get(api+"/urlpattern/%2Fb%2F%3Ac", all08...)
		expect(t, "of a pattern", fmt.Sprint(d.Subscriptions), "[subscription /b/:c urlpattern true <nil>]")
		status, _ = get(id+"x", all07...)
		expect(t, "none", status, 404)
		status, _ = get(api+"/a/b/c", all07...)
		expect(t, "no such place", status, 404)
		// Only what is granted.
		f := func(status int, path string, header ...string) {
			t.Helper()
			got, _ := get(path, header...)
			expect(t, path, got, status)
		}
		f(401, api)
		f(401, api, "Authorization", "Bearer "+token07(t, subSecret, "subscribe", "a"))
		f(200, api, "Authorization", "Bearer "+token07(t, subSecret, "subscribe", api+"{/rest*}"))
		f(200, id, "Authorization", "Bearer "+token07(t, subSecret, "subscribe", api+"/{topic}/{subscriber}"))
		f(401, api+"/a", "Authorization", "Bearer "+token07(t, subSecret, "subscribe", api+"/{topic}/{subscriber}"))
		f(403, api, "Authorization", "Bearer "+token08(t, subSecret, "subscribe", "a"))
		f(200, api, "Authorization", "Bearer "+token08(t, subSecret, "subscribe", api))
		f(200, api+"/exact/a", "Authorization", "Bearer "+token08(t, subSecret, "subscribe", "pattern "+api+"/:type/:match"))
		// What has not changed is not sent again.
		_, h, _ := n.request("GET", api, "", all07...)
		status, _, text := n.request("GET", api, "", append(all07, "If-None-Match", h.Get("ETag"))...)
		expect(t, "the same", fmt.Sprint(status, text), "304")
		one.Stop()
		trial.Eventually(t, "it is another", func() bool {
			status, _, _ := n.request("GET", api, "", append(all07, "If-None-Match", h.Get("ETag"))...)
			return status == 200
		})
		trial.Eventually(t, "two are left", func() bool { _, d := get(api, all07...); return len(d.Subscriptions) == 2 })
	})
}

func TestSubscriptionsOfAllNodesAreListedAndThoseOfADeadOneEnd(t *testing.T) {
	t.Parallel()
	nodes := clustertest.NewNet(1)
	t.Cleanup(nodes.Close)
	a, b := start(t, settings{bus: nodes.Join("a")}), start(t, settings{bus: nodes.Join("b")})
	nodetest.Meet(a.Node, b.Node)
	all := []string{"Authorization", "Bearer " + token07(t, subSecret, "subscribe", "*")}
	watch := a.subscribe("topic="+q(hubPath+"/subscriptions/{topic}/{subscriber}"), all...)
	watch.Next()
	b.subscribe("topic=there", all...)
	count := func() int {
		_, _, text := a.request("GET", hubPath+"/subscriptions/there", "", all...)
		return len(read(t, text).Subscriptions)
	}
	trial.Eventually(t, "it is listed", func() bool { return count() == 1 })
	nodes.Kill("b")
	trial.Eventually(t, "it is gone", func() bool { return count() == 0 })
	expect(t, "published", read(t, watch.Next().data), "Subscription there  false map[user:1]")
}
