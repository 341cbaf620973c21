package job

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/weir-gateway/weir/internal/observe/tune"
)

// track makes this process's namespace track connections, by a rule that looks at their state as
// a firewall's does; with untracked, all but those of the server at addr, by the rule of
// `weir tune apply conntrack.notrack`.
func track(addr string, untracked bool) error {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	table := c.AddTable(&nftables.Table{Name: "firewall", Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Ct{Register: 1, Key: expr.CtKeySTATE}, &expr.Counter{}}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: have connections tracked: %w", err)
	}
	if !untracked {
		return nil
	}
	return tune.NotrackRule{}.Save(tune.NotrackTarget, strconv.Itoa(int(at.Port())))
}

// tracked is how many connections this namespace tracks; 0 where it tracks none.
func tracked() float64 {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
	return n
}
