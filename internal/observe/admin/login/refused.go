package login

import (
	"github.com/weir-gateway/weir/internal/front/redact"
)

// A Refused is a login that did not succeed. Its text is for the user and names no secret.
type Refused struct {
	// Status is that of the response.
	Status int
	// Text is a sentence for the login page. It may repeat what the provider sent: it has
	// to be escaped.
	Text string
}

// Error implements error.
func (e *Refused) Error() string { return e.Text }

// Results of logins, as the metric counts them.
const (
	resultOK        = iota
	resultNoRole    // the user is none of operators and readers
	resultRejected  // state, nonce, token or session are not valid
	resultProvider  // the provider is not reachable, or has not let the user in
	resultThrottled // too many at once, or from one address
	results
)

var resultNames = [results]string{"ok", "no_role", "rejected", "provider", "throttled"}

// refuse counts and logs a login that does not succeed because of err.
func (o *OIDC) refuse(result, status int, text string, err error) *Refused {
	o.counts[result].Add(1)
	o.log.Warn("admin login refused", "result", resultNames[result], "err", redact.Text(err.Error()))
	return &Refused{Status: status, Text: redact.Text(text)}
}

// Throttled counts a login that the caller refuses because its address sent too many.
func (o *OIDC) Throttled() { o.counts[resultThrottled].Add(1) }

// Results are the logins so far, by result. A nil OIDC has had none.
func (o *OIDC) Results() map[string]uint64 {
	all := map[string]uint64{}
	for i, name := range resultNames {
		all[name] = 0
		if o != nil {
			all[name] = o.counts[i].Load()
		}
	}
	return all
}
