package main

import (
	"fmt"
	"strings"

	"github.com/weir-gateway/weir/internal/capacity"
	draw "github.com/weir-gateway/weir/internal/report"
)

// kneePage is a search as a page.
func kneePage(s search) *draw.Page {
	r := s.r
	v := draw.Verdict{Word: strings.ToUpper(string(r.Verdict)), Text: strings.Join(r.Reasons, ". "),
		State: map[capacity.Verdict]draw.State{capacity.Pass: draw.Good, capacity.Fail: draw.Bad, capacity.Inconclusive: draw.Unknown, capacity.Invalid: draw.Warn}[r.Verdict]}
	return &draw.Page{
		Title:  "Capacity of " + s.target,
		Lead:   fmt.Sprintf("%s. A %s search of %s, %s requests. Measured %s.", describeTarget(s.spec), r.Options.Mode, since(s.took), draw.Grouped(r.Requests), r.Started.Format("2006-01-02 15:04:05 MST")),
		Blocks: []draw.Block{v, limitsTable(r), levelsTable(r)},
		Data:   r,
		Footer: "Made by weir knee. The numbers are in this file as JSON.",
	}
}
