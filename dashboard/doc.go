// Package dashboard is the web page that shows a running gateway: plain HTML, CSS
// and modules, embedded as they are, so that `go build` is the build. It queries the
// admin API (internal/observe/admin) and nothing else.
//
//	index.html   every panel; data-v="path|format" says which number of the snapshot is shown where
//	app.js       starts the rest, keys, theme
//	feed.js      the snapshots: a stream, and asking again and again while there is none
//	panels/      what a number in a place does not show: tables, charts, tools
//
// The admin listener's content security policy allows no inline script or style, and
// the page itself requires trusted types without any policy: text becomes text, never
// markup, whatever is in the names and payloads of clients.
package dashboard
