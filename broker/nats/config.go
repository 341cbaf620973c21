package nats

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Broker. Either URL names a NATS that runs elsewhere, or Dir is
// where the NATS server inside this process keeps its files.
type Config struct {
	// URL of an external NATS, for example nats://10.0.0.1:4222; several, joined
	// by commas, are servers of one cluster. Empty means a server in this process.
	URL string `json:"url"`
	// Dir is where the embedded server stores. It belongs to one process at a
	// time. Required without URL, unused with it.
	Dir string `json:"dir"`
	// Prefix begins all subjects and stream names, so that several installations
	// can share one NATS: 1 to 32 bytes of A-Z, a-z, 0-9 and "_". Empty means "weir".
	Prefix string `json:"prefix"`
	// AssumeSynced says that the external servers run with sync_interval: always.
	// No client can see that, so synced namespaces are refused without it.
	AssumeSynced bool `json:"assume_synced"`

	// User and Password for an external NATS; empty means none.
	User     string `json:"user"`
	Password string `json:"password"`
	// Token for an external NATS; empty means none.
	Token string `json:"token"`
	// Credentials is a .creds file (JWT and seed) for an external NATS; empty means none.
	Credentials string `json:"credentials" secret:"false"`
	// TLS to an external NATS. The zero value uses TLS only where the URL says tls://.
	TLS TLS `json:"tls"`

	// Cluster joins the embedded server with those of other nodes. The zero value
	// means it is not clustered and listens nowhere.
	Cluster Cluster `json:"cluster"`

	// Sites are two sites with NATS servers each; the zero value means one site.
	Sites Sites `json:"sites"`

	// MaxPending bounds the publishes that wait for their answer; at the bound new
	// ones are refused with hub.ErrOverloaded. 0 means 8,192.
	MaxPending int `json:"max_pending"`
	// MaxPendingBytes bounds the same in bytes of payload. 0 means 64 MiB.
	MaxPendingBytes int `json:"max_pending_bytes"`
	// AckTimeout is how long a publish waits for NATS; 0 means 10s. With replicas
	// external servers need 4 to 9 seconds to elect another leader for a log, embedded
	// ones about 2.
	AckTimeout hub.Duration `json:"ack_timeout"`
	// ReadTimeout is how long one read of a log waits; 0 means 5s.
	ReadTimeout hub.Duration `json:"read_timeout"`
	// MinFree is the space that stays free on Dir's disk: below it publishing is
	// refused with hub.ErrStorageFull, before the disk itself refuses in the middle
	// of a write. 0 means the smaller of 64 MiB and an eighth of the disk.
	MinFree int64 `json:"min_free"`
}

// TLS options of the connection to an external NATS.
type TLS struct {
	// CA is a PEM file with the authorities to trust; empty means the system's.
	CA string `json:"ca"`
	// Cert and Key are PEM files that identify this client; empty means none.
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Cluster options of the embedded server.
type Cluster struct {
	// Name of the cluster, the same on all nodes; empty means no cluster.
	Name string `json:"name"`
	// Node is this server's name, unique in the cluster and kept for its life.
	Node string `json:"node"`
	// Listen is the host:port for the other nodes.
	Listen string `json:"listen"`
	// Routes are the other nodes' addresses, host:port. One that answers is enough.
	Routes []string `json:"routes"`
	// User and Password that the nodes show each other; empty means none.
	User     string `json:"user"`
	Password string `json:"password"`
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "weir"
	}
	if c.MaxPending == 0 {
		c.MaxPending = 8192
	}
	if c.MaxPendingBytes == 0 {
		c.MaxPendingBytes = 64 << 20
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = hub.Duration(10 * time.Second)
	}
	if c.Sites.Detect == 0 {
		c.Sites.Detect = hub.Duration(3 * time.Second)
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = hub.Duration(5 * time.Second)
	}
	return c
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("nats broker: "+format, a...)) }
	switch {
	case c.URL == "" && c.Dir == "":
		bad("dir: it is empty; name a directory for the embedded server, or the url of a NATS that runs elsewhere")
	case c.URL != "" && c.Cluster.Name != "":
		bad("cluster: it is for the embedded server; with url the cluster is the NATS servers' own matter")
	}
	for u := range strings.SplitSeq(c.URL, ",") {
		if p, err := url.Parse(strings.TrimSpace(u)); c.URL != "" && (err != nil || p.Host == "") {
			bad("url: %q is not an address; write for example nats://127.0.0.1:4222", u)
		}
	}
	if p := c.withDefaults().Prefix; len(p) > 32 || strings.Trim(p, plain) != "" {
		bad("prefix: %q is not 1 to 32 bytes of A-Z, a-z, 0-9 and _", p)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		bad("tls: cert and key go together")
	}
	if cl := c.Cluster; cl.Name != "" {
		if cl.Node == "" || strings.ContainsAny(cl.Name+cl.Node, " \t\r\n") {
			bad("cluster: name %q and node %q must be set, without spaces", cl.Name, cl.Node)
		}
		if _, _, err := net.SplitHostPort(cl.Listen); err != nil {
			bad("cluster.listen: %q is not host:port", cl.Listen)
		}
	} else if cl.Listen != "" || len(cl.Routes) > 0 || cl.Node != "" {
		bad("cluster.name: it is empty but other cluster options are set")
	}
	c.Sites.validate(c.URL, bad)
	if c.MaxPending < 0 || c.MaxPendingBytes < 0 || c.AckTimeout < 0 || c.ReadTimeout < 0 || c.MinFree < 0 {
		bad("max_pending, max_pending_bytes, ack_timeout, read_timeout and min_free must not be negative")
	}
	return errors.Join(errs...)
}

// check returns what of namespaces this broker cannot promise.
func (c Config) check(namespaces []hub.Namespace) error {
	var errs []error
	seen := map[string]bool{}
	for _, n := range namespaces {
		if err := n.Validate(); err != nil {
			errs = append(errs, err)
		}
		n = n.WithDefaults()
		if seen[n.LogName()] {
			errs = append(errs, fmt.Errorf("namespace %s is given twice", n.Title()))
		}
		seen[n.LogName()] = true
		if n.Durability == hub.Synced && c.URL != "" && !c.AssumeSynced {
			errs = append(errs, fmt.Errorf("namespace %q wants durability synced from an external NATS: a client cannot see "+
				"whether its servers sync; set sync_interval: always in their jetstream block and then assume_synced: true here", n.Name))
		}
		if n.BothSites && !c.Sites.enabled() {
			errs = append(errs, fmt.Errorf("namespace %q wants both_sites, and there is one site; set broker.nats.sites, or both_sites: false", n.Name))
		}
		if n.Replicas > 1 && n.Durability != hub.None && c.URL == "" && c.Cluster.Name == "" {
			errs = append(errs, fmt.Errorf("namespace %q wants %d replicas, but the embedded server is not clustered; "+
				"set cluster, or the url of a NATS cluster, or replicas: 1", n.Name, n.Replicas))
		}
	}
	return errors.Join(errs...)
}
