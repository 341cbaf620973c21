package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/weir-gateway/weir/internal/observe/tune"
)

// tuneWidth is how wide the text of a finding is.
const tuneWidth = 100

// writeFindings prints a report: what is to be done, with all also what is as it should
// be, and with verbose everything that is known of each.
func writeFindings(w io.Writer, r *tune.Report, all, verbose bool) {
	fmt.Fprintf(w, "Linux %s, profile %s: %s\n", r.Kernel, r.Profile, tuneCounts(r))
	var area tune.Area
	for _, f := range r.Findings {
		quiet := f.State == tune.OK || f.State == tune.Absent || f.State == tune.Unsupported
		if quiet && !all {
			continue
		}
		if f.Area != area {
			area = f.Area
			fmt.Fprintf(w, "\n%s\n", area)
		}
		value := f.Now
		if f.Want != "" {
			value = quoteEmpty(f.Now) + " → " + f.Want
		}
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  %-11s  %-40s  %s", f.State, f.Knob, value), " "))
		if !quiet || verbose || f.State != tune.OK {
			wrap(w, "", f.Why)
		}
		if f.State == tune.Change && !verbose {
			wrap(w, "worth: ", f.Worth+pageOf(f))
			wrap(w, "risk: ", f.Risk)
		}
		if verbose {
			writeDetails(w, f)
		}
	}
	if n := r.Counts[tune.Change]; n > 0 {
		fmt.Fprintf(w, "\nweir tune plan prints the files for every boot; weir tune apply makes the changes now, weir tune undo takes them back.\n")
	}
}

func writeDetails(w io.Writer, f tune.Finding) {
	for _, e := range f.Evidence {
		wrap(w, "evidence: ", fmt.Sprintf("%s = %s (%s)", e.Name, quoteEmpty(e.Value), e.From))
	}
	wrap(w, "threshold: ", f.Threshold)
	wrap(w, "documented: ", f.Source)
	wrap(w, "since: ", f.Since)
	wrap(w, "risk: ", f.Risk)
	wrap(w, "undo: ", f.Undo)
	wrap(w, "worth: ", f.Worth+pageOf(f))
	if len(f.Config) > 0 && len(f.Steps) == 0 {
		wrap(w, "apply: ", "left alone, weir tune plan "+f.Knob+" has the files")
	}
}

func pageOf(f tune.Finding) string {
	if f.Page == "" {
		return ""
	}
	return " (" + f.Page + ")"
}

func tuneCounts(r *tune.Report) string {
	var parts []string
	for _, s := range []struct {
		state tune.State
		text  string
	}{
		{tune.Change, "to change"}, {tune.Watch, "to look at"}, {tune.Obsolete, "obsolete"}, {tune.Forbidden, "not readable"},
		{tune.OK, "ok"}, {tune.Absent, "not in this kernel"}, {tune.Unsupported, "not supported here"},
	} {
		if n := r.Counts[s.state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s.text))
		}
	}
	return strings.Join(parts, ", ")
}

// wrap prints text below a finding, its lines indented.
func wrap(w io.Writer, label, text string) {
	const indent = "               "
	line := indent + label
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && len([]rune(line))+1+len([]rune(word)) > tuneWidth {
			fmt.Fprintln(w, line)
			line, empty = indent+strings.Repeat(" ", min(len(label), 2)), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	if !empty {
		fmt.Fprintln(w, line)
	}
}
