package redact

import "net/url"

// Endpoint returns of a URL that is called, whose path may be its secret as that of a
// webhook often is, the scheme and the host only. What is not a URL is not shown at all.
func Endpoint(s string) string {
	if s == "" {
		return ""
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return Mark
	}
	shown := u.Scheme + "://" + u.Host
	if u.Scheme == "" {
		shown = "//" + u.Host
	}
	if u.User == nil && u.RawQuery == "" && u.Fragment == "" && (u.Path == "" || u.Path == "/") {
		return shown + u.Path
	}
	return shown + "/" + Mark
}
