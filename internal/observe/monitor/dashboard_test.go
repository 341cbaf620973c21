package monitor

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

// A panel is one of the dashboard's, before it is laid out.
type panel struct {
	title, about string
	kind         string // of Grafana's: "timeseries", "stat", "heatmap", "state-timeline"; "row" starts a section
	unit         string // of Grafana's: "s", "percentunit", "short", "bytes", "Bps", "cps"
	wide         int    // of 24 columns; 0 means 8
	warn, bad    float64
	queries      []query
	cause        bool // values are states
}

// A query is an expression and how its series are named.
type query struct{ expr, legend string }

// panelExpressions returns the dashboard's queries, by title. Grafana's variables are left in the expressions.
func panelExpressions(t governor.Thresholds, native bool) map[string][]string {
	all := map[string][]string{}
	for _, p := range panels(t.WithDefaults(), native) {
		for _, q := range p.queries {
			all[p.title] = append(all[p.title], q.expr)
		}
	}
	return all
}

// The part of Grafana's dashboard schema that is used.
type (
	dashboardJSON struct {
		UID           string      `json:"uid"`
		Title         string      `json:"title"`
		Description   string      `json:"description"`
		Tags          []string    `json:"tags"`
		SchemaVersion int         `json:"schemaVersion"`
		Version       int         `json:"version"`
		Editable      bool        `json:"editable"`
		GraphTooltip  int         `json:"graphTooltip"` // 1: a shared crosshair
		Refresh       string      `json:"refresh"`
		Time          object      `json:"time"`
		Timezone      string      `json:"timezone"`
		Templating    object      `json:"templating"`
		Annotations   object      `json:"annotations"`
		Links         []object    `json:"links"`
		Panels        []panelJSON `json:"panels"`
	}
	panelJSON struct {
		ID          int      `json:"id"`
		Type        string   `json:"type"`
		Title       string   `json:"title"`
		Description string   `json:"description,omitempty"`
		GridPos     grid     `json:"gridPos"`
		Datasource  object   `json:"datasource,omitempty"`
		FieldConfig object   `json:"fieldConfig,omitempty"`
		Options     object   `json:"options,omitempty"`
		Targets     []object `json:"targets,omitempty"`
		Collapsed   *bool    `json:"collapsed,omitempty"` // rows have it
	}
	grid struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	object map[string]any
)

// source is the data source that the reader of the dashboard chooses.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// writeDashboard writes the dashboard for Grafana 10 or newer under thresholds t. native is
// for a Prometheus that keeps native histograms (metrics.native_histograms).
func writeDashboard(w io.Writer, t governor.Thresholds, native bool) error {
	uid, title := "weir", "Weir"
	if native {
		uid, title = "weir-native", "Weir (native histograms)"
	}
	d := dashboardJSON{
		UID: uid, Title: title, Description: "Made of the thresholds of the gateway itself: docs/howto/operate.md.", Tags: []string{"weir"},
		SchemaVersion: 39, Version: 1, Editable: true, GraphTooltip: 1, Refresh: "10s", Timezone: "browser",
		Time:        object{"from": "now-30m", "to": "now"},
		Templating:  object{"list": variables()},
		Annotations: object{"list": annotations()},
		Links:       []object{{"title": "Runbooks", "type": "link", "url": strings.TrimSuffix(Runbooks, "/"), "icon": "doc", "targetBlank": true}},
		Panels:      layOut(panels(t.WithDefaults(), native)),
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

func variables() []object {
	choice := func(name, label, query string, several bool) object {
		return object{
			"name": name, "label": label, "type": "query", "datasource": source, "query": object{"query": query, "refId": name}, "definition": query,
			"refresh": 2, "sort": 1, "includeAll": several, "multi": several, "allValue": ".+", "current": object{}, "hide": 0,
		}
	}
	return []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "current": object{}, "hide": 0},
		choice("job", "Job", "label_values(weir_loops, job)", false),
		choice("instance", "Node", `label_values(weir_loops{job="$job"}, instance)`, true),
	}
}

// annotations mark the alerts, and the changes of state, on every panel.
func annotations() []object {
	mark := func(name, expr, title, colour string) object {
		return object{"name": name, "datasource": source, "enable": true, "iconColor": colour, "expr": expr, "titleFormat": title, "step": "10s"}
	}
	return []object{
		mark("Alerts", `ALERTS{alertname=~"Weir.+", alertstate="firing", severity!="information", instance=~"$instance"}`, "{{alertname}} {{instance}}", "orange"),
		mark("Inflections", inject(`weir_governor_state{@, state="inflection"} == 1`), "inflection {{instance}}", "red"),
	}
}

// inject puts the choice of job and nodes where an expression has an @.
func inject(expr string) string {
	return strings.ReplaceAll(expr, "@", `job="$job", instance=~"$instance"`)
}

const rowHeight = 7

// layOut places panels from left to right and top to bottom.
func layOut(all []panel) []panelJSON {
	var out []panelJSON
	x, y := 0, 0
	for i, p := range all {
		if p.wide == 0 {
			p.wide = 8
		}
		if p.kind == "row" {
			if x > 0 {
				x, y = 0, y+rowHeight
			}
			out = append(out, panelJSON{ID: i + 1, Type: "row", Title: p.title, GridPos: grid{1, 24, 0, y}, Collapsed: new(bool)})
			y++
			continue
		}
		if x+p.wide > 24 {
			x, y = 0, y+rowHeight
		}
		out = append(out, p.json(i+1, grid{rowHeight, p.wide, x, y}))
		x += p.wide
	}
	return out
}

func (p *panel) json(id int, at grid) panelJSON {
	j := panelJSON{ID: id, Type: p.kind, Title: p.title, Description: p.about, GridPos: at, Datasource: source}
	for i, q := range p.queries {
		target := object{"refId": string(rune('A' + i)), "datasource": source, "expr": q.expr, "legendFormat": q.legend, "range": true}
		if p.kind == "heatmap" {
			target["format"] = "heatmap"
		}
		j.Targets = append(j.Targets, target)
	}
	defaults := object{"unit": p.unit, "color": object{"mode": "palette-classic"}, "min": 0}
	if p.warn > 0 || p.bad > 0 || p.cause {
		defaults["thresholds"] = object{"mode": "absolute", "steps": p.steps()}
	}
	options := object{}
	switch p.kind {
	case "timeseries":
		custom := object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": false}
		if p.warn > 0 || p.bad > 0 {
			custom["thresholdsStyle"] = object{"mode": "dashed"}
		}
		defaults["custom"] = custom
		options = object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	case "stat":
		defaults["color"] = object{"mode": "thresholds"}
		options = object{"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "textMode": "auto", "reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}}
	case "heatmap":
		options = object{
			"calculate": false, "yAxis": object{"unit": p.unit, "axisPlacement": "left"}, "color": object{"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
			"cellGap": 1, "tooltip": object{"mode": "single", "showColorScale": false, "yHistogram": false}, "legend": object{"show": false},
		}
	case "state-timeline":
		defaults["color"] = object{"mode": "thresholds"}
		defaults["custom"] = object{"fillOpacity": 75, "lineWidth": 0}
		options = object{"mergeValues": true, "showValue": "auto", "rowHeight": 0.9, "alignValue": "left", "legend": object{"showLegend": false, "displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "single", "sort": "none"}}
	}
	if p.cause {
		defaults["mappings"] = []object{{"type": "value", "options": object{"0": object{"text": "steady", "index": 0}, "1": object{"text": "alert", "index": 1}, "2": object{"text": "inflection", "index": 2}}}}
	}
	j.FieldConfig, j.Options = object{"defaults": defaults, "overrides": []object{}}, options
	return j
}

// steps are the colours: green, from warn on orange, from bad on red. Where little is
// bad, bad is below warn.
func (p *panel) steps() []object {
	step := func(colour string, from any) object { return object{"color": colour, "value": from} }
	switch {
	case p.cause:
		return []object{step("green", nil), step("orange", 1), step("red", 2)}
	case p.warn > 0 && p.bad > 0 && p.bad < p.warn:
		return []object{step("red", nil), step("orange", p.bad), step("green", p.warn)}
	}
	steps := []object{step("green", nil)}
	if p.warn > 0 {
		steps = append(steps, step("orange", p.warn))
	}
	if p.bad > 0 {
		steps = append(steps, step("red", p.bad))
	}
	return steps
}
