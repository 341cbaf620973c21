// Package upstream is the policy towards backends: clusters of peers, balancing,
// health, breaking, retry budgets, releases. It opens no socket.
package upstream
