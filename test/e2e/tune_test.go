package e2e

import (
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// The settings panel shows what the server's own check finds for the chosen profile.
func TestDashboardChecksTheMachine(t *testing.T) {
	t.Parallel()
	_, address := watched(t, nil)
	p := newTab(t)
	p.do(t, "open", map[string]any{"url": address, "width": 1400, "height": 900}, nil)
	p.do(t, "frames", 2, nil)
	var seen struct{ Rows, Server string }
	const choose = `((profile) => {
		const select = document.getElementById("tune-profile");
		select.value = profile;
		select.dispatchEvent(new Event("change"));
		return profile;
	})`
	const read = `(async (profile) => {
		const r = await (await fetch("/api/tune?profile=" + profile)).json();
		const knobs = r.findings.filter((f) => !["ok", "absent", "unsupported"].includes(f.state)).map((f) => f.knob);
		const rows = [...document.querySelectorAll("#tune tbody tr")].filter((r) => r.cells.length > 1).map((r) => r.cells[0].textContent);
		return { rows: document.getElementById("tune-scroll").hidden ? "unchecked" : rows.join(" "), server: knobs.join(" ") };
	})`
	for _, profile := range []string{"bench", "gateway"} {
		var chosen string
		p.do(t, "evaluate", choose+`("`+profile+`")`, &chosen)
		judge.Eventually(t, 20*time.Second, "the findings of "+profile, func() bool {
			p.do(t, "evaluate", read+`("`+profile+`")`, &seen)
			return seen.Rows == seen.Server
		})
	}
}
