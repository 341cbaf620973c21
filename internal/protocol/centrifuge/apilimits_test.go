package centrifuge_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

const bound = 64 << 10

// bounded is a node whose answers may take bound bytes.
func bounded(t *testing.T) *node {
	return start(t, settings{
		cfg:    centrifuge.Config{APIMaxAnswer: bound, AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{"default": open}},
		spaces: []hub.Namespace{{Name: "default"}},
	})
}

const tooLarge = `{"code":106,"message":"limit exceeded: the answer takes more than api_max_answer, 65536 bytes"}`

// page is an answer of history.
type page struct {
	Result struct {
		Publications []struct {
			Data   string
			Offset uint64
			Tags   map[string]string
		}
		Offset uint64
		Epoch  string
	}
	Error *struct{ Message string }
}

// history reads one page of news.
func (n *node) history(query string) page {
	n.T.Helper()
	_, text := n.api("history", query)
	if len(text) > bound+64 {
		n.T.Errorf("%s: %d bytes", query, len(text))
	}
	var p page
	if err := json.Unmarshal([]byte(text), &p); err != nil || p.Error != nil {
		n.T.Fatalf("%s: %v in %.200s", query, err, text)
	}
	return p
}

func TestAHistoryThatIsTooLargeComesInPages(t *testing.T) {
	n := bounded(t)
	const count = 40
	for i := range count {
		n.wantAPI("publish", fmt.Sprintf(`{"channel":"news","data":"%d %s","tags":{"k":"%s"}}`, i, strings.Repeat("x", 5000), strings.Repeat(`\u0001`, 500)), `{"result":{"offset":"?","epoch":"?"}}`)
	}
	f := func(reverse bool) {
		t.Helper()
		since, pages, got := "", 0, []uint64{}
		for {
			p := n.history(fmt.Sprintf(`{"channel":"news","limit":-1,"reverse":%t%s}`, reverse, since))
			if len(p.Result.Publications) == 0 {
				break
			}
			for _, x := range p.Result.Publications {
				got = append(got, x.Offset)
			}
			if pages++; p.Result.Offset != count {
				t.Errorf("the top is %d", p.Result.Offset)
			}
			since = fmt.Sprintf(`,"since":{"offset":%d,"epoch":%q}`, got[len(got)-1], p.Result.Epoch)
			if reverse && got[len(got)-1] == 1 {
				break
			}
		}
		if len(got) != count || pages < 4 || pages > 8 {
			t.Errorf("reverse %t: %d publications in %d pages", reverse, len(got), pages)
		}
		for i, offset := range got {
			want := uint64(i + 1)
			if reverse {
				want = uint64(count - i)
			}
			if offset != want {
				t.Fatalf("reverse %t: offset %d at %d", reverse, offset, i)
			}
		}
	}
	f(false)
	f(true)
}

func TestABatchIsBoundedAsAWhole(t *testing.T) {
	n := bounded(t)
	for range 8 {
		n.publish("news", `"`+strings.Repeat("x", 10_000)+`"`)
	}
	read := `{"history":{"channel":"news","limit":8}}`
	_, text := n.api("batch", `{"commands":[`+strings.Repeat(read+",", 49)+read+`,{"publish":{"channel":"late","data":1}}]}`)
	if len(text) > 2*bound || !strings.Contains(text, `{"error":`+tooLarge+`}`) {
		t.Errorf("%d bytes: ... %s", len(text), text[max(0, len(text)-300):])
	}
	n.wantAPI("history", `{"channel":"late","limit":-1}`, `{"result":{"publications":[],"epoch":"?","offset":"?"}}`)
}

func TestABroadcastThatCannotBeAnsweredIsNotDone(t *testing.T) {
	n := bounded(t)
	list, _ := json.Marshal(strings.Split(strings.Repeat("a,", 200)+"a", ","))
	n.wantAPI("broadcast", `{"channels":`+string(list)+`,"data":1}`, `{"error":`+tooLarge+`}`)
	n.wantAPI("history", `{"channel":"a","limit":-1}`, `{"result":{"publications":[],"epoch":"?","offset":"?"}}`)
	n.wantAPI("broadcast", `{"channels":["a","b"],"data":1}`, `{"result":{"responses":["?","?"]}}`)
}

func TestPresenceAndChannelsAreBounded(t *testing.T) {
	n := bounded(t)
	const members = 24
	info := strings.Repeat("x", 3000)
	for i := range members {
		c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42", "info": map[string]string{"x": info}}) + `"}`)
		c.subscribe(`{"channel":"few"}`)
		if i == 0 {
			trial.Eventually(t, "one is there", func() bool {
				_, got := n.api("presence_stats", `{"channel":"few"}`)
				return strings.Contains(got, `"num_clients":1`)
			})
			if _, got := n.api("presence", `{"channel":"few"}`); !strings.Contains(got, info) {
				t.Errorf("one member: %.300s", got)
			}
		}
	}
	trial.Eventually(t, "all are there", func() bool {
		_, got := n.api("presence_stats", `{"channel":"few"}`)
		return strings.Contains(got, fmt.Sprintf(`"num_clients":%d`, members))
	})
	n.wantAPI("presence", `{"channel":"few"}`, `{"error":`+tooLarge+`}`)
	c := n.connect("{}")
	for i := range 100 {
		c.subscribe(fmt.Sprintf(`{"channel":"c%d-%s"}`, i, strings.Repeat("y", 800)))
	}
	n.wantAPI("channels", `{}`, `{"error":`+tooLarge+`}`)
	n.wantAPI("channels", `{"pattern":"c1*"}`, `{"result":{"channels":"?"}}`)
}

func TestAClientIsNotSentMorePresenceThanItMayHaveWaiting(t *testing.T) {
	n := start(t, settings{
		cfg:    centrifuge.Config{MaxQueue: 2000, AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{"default": open}},
		spaces: []hub.Namespace{{Name: "default"}},
	})
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42", "info": strings.Repeat("x", 1500)}) + `"}`)
	c.subscribe(`{"channel":"few"}`)
	ask := func(want string) {
		trial.Eventually(t, want, func() bool {
			c.send(`{"id":9,"presence":{"channel":"few"}}`)
			return strings.Contains(c.next(), want)
		})
	}
	ask("xxxx")
	d := n.connect(`{"token":"` + token(t, map[string]any{"sub": "7", "info": strings.Repeat("y", 1500)}) + `"}`)
	d.subscribe(`{"channel":"few"}`)
	ask("limit exceeded")
}

func TestAPIPublishesVersions(t *testing.T) {
	n := start(t, settings{spaces: []hub.Namespace{{Name: "default"}, {Name: "flow", Durability: hub.None}}, cfg: centrifuge.Config{
		AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{"default": open, "flow": open},
	}})
	c := n.connect("{}")
	c.subscribe(`{"channel":"news"}`)
	f := func(fields, want string) {
		t.Helper()
		n.wantAPI("publish", `{"channel":"news",`+fields+`}`, want)
	}
	f(`"data":1,"version":7,"version_epoch":"a"`, `{"result":{"offset":1,"epoch":"?"}}`)
	f(`"data":2,"version":7,"version_epoch":"a"`, `{"result":{"offset":1,"epoch":"?"}}`)
	f(`"data":3,"version":3`, `{"result":{"offset":1,"epoch":"?"}}`)
	f(`"data":4,"version":3,"version_epoch":"b"`, `{"result":{"offset":2,"epoch":"?"}}`)
	f(`"data":5,"version":3,"version_epoch":"`+strings.Repeat("x", 300)+`"`, `{"error":{"code":107,"message":"bad request"}}`)
	n.wantAPI("broadcast", `{"channels":["news"],"data":6,"version":2}`, `{"result":{"responses":[{"result":{"offset":2,"epoch":"?"}}]}}`)
	n.wantAPI("broadcast", `{"channels":["other"],"data":6,"version":2}`, `{"result":{"responses":[{"result":{"offset":3,"epoch":"?"}}]}}`)
	n.wantAPI("batch", `{"commands":[{"publish":{"channel":"news","data":7,"version":4}}]}`, `{"replies":[{"publish":{"offset":4,"epoch":"?"}}]}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":1,"offset":1}}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":4,"offset":2}}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":7,"offset":4}}}`)
	n.wantAPI("publish", `{"channel":"flow:x","data":1,"version":1}`, `{"result":{}}`)
}

func TestAPISkipsHistory(t *testing.T) {
	n := start(t, settings{spaces: []hub.Namespace{{Name: "default"}}})
	c := n.connect("{}")
	c.subscribe(`{"channel":"news"}`)
	n.wantAPI("publish", `{"channel":"news","data":1}`, `{"result":{"offset":1,"epoch":"?"}}`)
	n.wantAPI("publish", `{"channel":"news","data":2,"skip_history":true,"tags":{"a":"b"},"version":1}`, `{"result":{}}`)
	n.wantAPI("broadcast", `{"channels":["news"],"data":3,"skip_history":true}`, `{"result":{"responses":[{"result":{}}]}}`)
	n.wantAPI("publish", `{"channel":"news","data":4}`, `{"result":{"offset":2,"epoch":"?"}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":1,"offset":1}}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":2,"tags":{"a":"b"}}}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":3}}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":4,"offset":2}}}`)
	n.wantAPI("history", `{"channel":"news","limit":-1}`, `{"result":{"publications":[{"data":1,"offset":1},{"data":4,"offset":2}],"epoch":"?","offset":2}}`)
}
