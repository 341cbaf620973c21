// Package report draws: plots as SVG, pages that need nothing but themselves, and the
// terminal's live view.
package report
