package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/observe/admin/login"
)

// newLoginMetrics shows the logins to the admin listener through an OpenID provider.
func newLoginMetrics(o *login.OIDC, c *catalog) *coreMetrics {
	desc := c.desc("weir_admin_oidc_logins_total", "Logins to the admin listener through the OpenID provider, by result: ok, no_role (no operator or reader), rejected (state, nonce or token), provider (not reachable, or has not logged the user in), throttled.", "result")
	return &coreMetrics{list: []metric{{desc, prometheus.CounterValue, func(emit func(float64, ...string)) {
		for result, n := range o.Results() {
			emit(float64(n), result)
		}
	}}}}
}
