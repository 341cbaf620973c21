package centrifuge_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/broker/nats"
)

// A client of this protocol sends an epoch and an offset and no check. After a backup
// was put back with all that was beside it, one that had come further is not recovered,
// whether other publications took its offsets or not.
func TestRestoredLogIsNotRecovered(t *testing.T) {
	dir, backup := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "backup")
	phase := func(name string, f func(t *testing.T, n *node)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) {
			b, err := nats.New(nats.Config{Dir: dir}, nil)
			if err != nil {
				t.Fatal(err)
			}
			f(t, start(t, settings{broker: b}))
		}) {
			t.FailNow()
		}
	}
	publish := func(n *node, count int, label string) {
		for i := range count {
			n.publish("news", fmt.Sprintf(`"%s %d"`, label, i))
		}
	}
	// answers are what the server answers to a client that was last at this place.
	answers := func(t *testing.T, n *node, epoch string, offset int, recovered bool, missed int) {
		t.Helper()
		c := n.connect("{}")
		c.send(fmt.Sprintf(`{"id":2,"subscribe":{"channel":"news","recover":true,"epoch":%q,"offset":%d}}`, epoch, offset))
		var r struct {
			Subscribe *struct {
				Recovered    bool
				Publications []json.RawMessage
			}
		}
		if line := c.next(); json.Unmarshal([]byte(line), &r) != nil || r.Subscribe == nil {
			t.Fatal(line)
		} else if r.Subscribe.Recovered != recovered || len(r.Subscribe.Publications) != missed {
			t.Errorf("from %s, %d: %s", epoch, offset, line)
		}
		_, text := n.api("history", fmt.Sprintf(`{"channel":"news","limit":100,"since":{"epoch":%q,"offset":%d}}`, epoch, offset))
		if got := strings.Count(text, `"data":`); (got == missed && !strings.Contains(text, `"error"`)) != recovered {
			t.Errorf("history since %s, %d: %s", epoch, offset, text)
		}
	}
	var first, second string
	phase("until the backup", func(t *testing.T, n *node) {
		first, _ = n.connect("{}").subscribe(`{"channel":"news"}`)
		publish(n, 10, "kept")
	})
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	phase("after the backup", func(t *testing.T, n *node) {
		publish(n, 10, "lost")
		second, _ = n.connect("{}").subscribe(`{"channel":"news"}`)
		if first == second {
			t.Errorf("two processes have one epoch, %s", first)
		}
		answers(t, n, first, 10, true, 10)
		answers(t, n, second, 15, true, 5)
		at := n.wantAPI("publish", `{"channel":"news","data":1}`, `{"result":{"offset":21,"epoch":"?"}}`)
		if got := at["result"].(map[string]any)["epoch"]; got != second {
			t.Errorf("a publish is answered with epoch %v, a subscription with %s", got, second)
		}
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	phase("restored", func(t *testing.T, n *node) {
		publish(n, 15, "new")
		third, top := n.connect("{}").subscribe(`{"channel":"news"}`)
		if top != 25 || strings.Split(third, ".")[0] != strings.Split(first, ".")[0] {
			t.Fatalf("at %s, %d; the log has a new epoch since %s", third, top, first)
		}
		answers(t, n, first, 10, true, 15)
		answers(t, n, second, 10, true, 15)
		answers(t, n, second, 15, false, 0)
		answers(t, n, second, 21, false, 0)
		answers(t, n, strings.Split(first, ".")[0], 24, true, 1) // of another protocol
		answers(t, n, third, 15, true, 10)
		answers(t, n, third+"x", 15, false, 0)
	})
}
