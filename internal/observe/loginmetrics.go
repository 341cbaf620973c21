package observe

import "github.com/weir-gateway/weir/internal/observe/admin/login"

// newLoginMetrics shows the logins to the admin listener through an OpenID provider.
func newLoginMetrics(o *login.OIDC, c *catalog) *group {
	g := c.group("")
	by(g, "weir_admin_oidc_logins_total", "Logins to the admin listener through the OpenID provider, by result: ok, no_role (no operator or reader), rejected (state, nonce or token), provider (not reachable, or has not logged the user in), throttled.", "result", o.Results)
	return g
}
