package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// What has no data yet shows its title only, and nothing is red while all is well.
func TestDashboardShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	s, address := watched(t, nil)
	p := newTab(t)
	p.do(t, "open", map[string]any{"url": address, "width": 390, "height": 844}, nil)
	p.do(t, "frames", 2, nil)
	folded := func() (names []string) {
		p.do(t, "evaluate", `[...document.querySelectorAll(".folded h2")].map((h) => h.textContent)`, &names)
		return names
	}
	for _, want := range []string{"Latency, publish → socket", "Slowest consumers", "Upstream health", "Canaries of releases", "Channels"} {
		if !slices.Contains(folded(), want) {
			t.Errorf("%q is open without data; folded are %q", want, folded())
		}
	}
	var got struct{ Needs, Has int }
	p.do(t, "evaluate", `(() => {
		const causes = document.getElementById("causes"), more = [];
		for (let i = 0; i < 3; i++) {
			const c = document.createElement("li");
			c.className = "chip";
			c.textContent = "CPU starved: others run, we wait 0.42 s/s per P and use 6.2 %";
			causes.append(c);
			more.push(c);
		}
		const last = more[2].getBoundingClientRect(), box = causes.getBoundingClientRect();
		for (const c of more) c.remove();
		return { needs: Math.ceil(last.bottom), has: Math.ceil(box.bottom) };
	})()`, &got)
	if got.Needs > got.Has {
		t.Errorf("the last of three causes ends at %d, their box at %d", got.Needs, got.Has)
	}
	var c crowd
	t.Cleanup(c.wg.Wait)
	for range 9 {
		c.join(t, s.Public, "news", true)
	}
	c.publish(t, s.Public, 10*time.Millisecond, "news")
	judge.Eventually(t, 30*time.Second, "panels to open", func() bool {
		names := folded()
		return !slices.Contains(names, "Slowest consumers") && !slices.Contains(names, "Latency, publish → socket") && !slices.Contains(names, "Channels")
	})
	p.has(t, "#slow tbody", "Disconnect")
	var red []string
	p.do(t, "evaluate", `[...document.querySelectorAll("#slow tr.zero button.danger")].map((b) => b.textContent)`, &red)
	if len(red) > 0 {
		t.Errorf("%d red buttons at clients that are not behind", len(red))
	}
	var left, own string
	p.do(t, "text", "#knee-big", &left)
	p.do(t, "text", "#knee-text", &own)
	if !strings.Contains(own, "This process uses") || !strings.Contains(own, "others") {
		t.Errorf("%q left, and it is not said who uses the rest: %q", left, own)
	}
	p.clean(t)
}
