package tune

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// NotrackTarget names the NOTRACK rule as the target of a Step. Its value is the ports,
// such as 8000,8443; empty without a rule.
const NotrackTarget = "nftables:inet/" + notrackTable

// notrackTable has a name of its own, so that removing it removes nothing else.
const notrackTable = "weir_notrack"

// A NotrackRule is the nftables table that leaves the service's connections untracked, in
// the network namespace of the process. The zero value works; it needs CAP_NET_ADMIN.
type NotrackRule struct{}

var _ Store = NotrackRule{}

// Load returns the ports of the rule, "" without one.
func (NotrackRule) Load(string) (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("nftables: %w", err)
	}
	table, err := c.ListTableOfFamily(notrackTable, nftables.TableFamilyINet)
	if errors.Is(err, fs.ErrNotExist) || err == nil && table == nil {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("nftables: %w", err)
	}
	rules, err := c.GetRules(table, &nftables.Chain{Name: "prerouting", Table: table})
	if err != nil {
		return "", fmt.Errorf("nftables: %w", err)
	}
	var ports []int
	for _, r := range rules {
		for _, e := range r.Exprs {
			if cmp, ok := e.(*expr.Cmp); ok && len(cmp.Data) == 2 {
				ports = append(ports, int(binary.BigEndian.Uint16(cmp.Data)))
			}
		}
	}
	return portList(ports), nil
}

// Save replaces the table by one for the ports in value, or removes it if value is empty,
// as one transaction.
func (NotrackRule) Save(_, value string) error {
	ports, err := parsePorts(value)
	if err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	table := &nftables.Table{Name: notrackTable, Family: nftables.TableFamilyINet}
	// Deleting what is not there fails the transaction; adding what is there does not.
	c.AddTable(table)
	c.DelTable(table)
	if len(ports) > 0 {
		addNotrack(c, c.AddTable(table), ports)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

func addNotrack(c *nftables.Conn, table *nftables.Table, ports []int) {
	for _, hook := range []struct {
		name string
		at   *nftables.ChainHook
	}{{"prerouting", nftables.ChainHookPrerouting}, {"output", nftables.ChainHookOutput}} {
		chain := c.AddChain(&nftables.Chain{
			Name: hook.name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook.at, Priority: nftables.ChainPriorityRaw,
		})
		for _, port := range ports {
			// Both directions in both chains: a client on this machine sends by output too.
			for _, offset := range []uint32{0, 2} { // source port, destination port
				c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
					&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
					&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{6}}, // TCP
					&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
					&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, uint16(port))},
					&expr.Notrack{},
				}})
			}
		}
	}
}

// NotrackText is the same rule for `nft -f`.
func NotrackText(ports []int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#!/usr/sbin/nft -f\n# Connections to these ports are not tracked. /etc/nftables.conf needs:\n# include \"/etc/nftables.d/*.nft\"\ntable inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n", notrackTable)
	for _, chain := range []string{"prerouting", "output"} {
		fmt.Fprintf(&b, "\tchain %[1]s {\n\t\ttype filter hook %[1]s priority raw; policy accept;\n", chain)
		for _, port := range ports {
			fmt.Fprintf(&b, "\t\ttcp sport %[1]d notrack\n\t\ttcp dport %[1]d notrack\n", port)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// portList is ports in order, each once, joined by commas.
func portList(ports []int) string {
	ports = slices.Clone(ports)
	slices.Sort(ports)
	var list []string
	for _, p := range slices.Compact(ports) {
		list = append(list, strconv.Itoa(p))
	}
	return strings.Join(list, ",")
}

func parsePorts(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var ports []int
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("invalid port %q: want numbers from 1 to 65535, separated by commas", part)
		}
		ports = append(ports, n)
	}
	return ports, nil
}
