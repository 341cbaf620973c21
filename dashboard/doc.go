// Package dashboard is the web page that shows a running gateway.
package dashboard
