package centrifuge

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/protocol/jsontext"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// The topics of questions to all nodes.
const (
	topicInfo     = "centrifuge.info"
	topicChannels = "centrifuge.channels"
)

// queryTimeout bounds a question to all nodes.
const queryTimeout = 3 * time.Second

// A census counts the clients and channels of this node and of the others. Any goroutine.
type census struct{ srv *Server }

// query puts a question to all nodes, this one included.
func (n census) query(ctx context.Context, topic string, data []byte, local func() []byte) map[string][]byte {
	if n.srv.deps.Cluster == nil {
		return map[string][]byte{n.srv.node(): local()}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	answers, missing, err := n.srv.deps.Cluster.Request(ctx, topic, data)
	if err != nil || len(missing) > 0 {
		n.srv.log.Warn("ask all nodes", "topic", topic, "missing", missing, "err", err)
	}
	return answers
}

// tooMany is what a node counts that has more channels than fit into an answer. No
// channel has that name.
const tooMany = ""

// channels counts the subscribers of this node's channels, as JSON.
func (n census) channels(pattern string) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	most := min(n.srv.conf().cfg.APIMaxAnswer, cluster.MaxAnswer-64)
	out := []byte{'{'}
	err := n.srv.deps.Hub.Channels(ctx, func(st hub.ChannelStats) bool {
		name := wireName(st.Name)
		if st.Subscribers == 0 || hub.IsWhole(st.Name) || pattern != "" && !glob(pattern, name) {
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(jsontext.AppendString(out, name), ':')
		out = strconv.AppendInt(out, int64(st.Subscribers), 10)
		return len(out) <= most
	})
	if err != nil {
		n.srv.log.Warn("list channels", "err", err)
	}
	if len(out) > most {
		return []byte(`{"` + tooMany + `":1}`)
	}
	return append(out, '}')
}

// glob reports whether name fits a pattern, in which "*" represents any bytes and "?"
// for one.
func glob(pattern, name string) bool {
	star, at := -1, 0 // the last star, and what it has swallowed up to
	i, j := 0, 0
	for j < len(name) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, at = i, j
			i++
		case i < len(pattern) && (pattern[i] == '?' || pattern[i] == name[j]):
			i, j = i+1, j+1
		case star >= 0:
			at++
			i, j = star+1, at
		default:
			return false
		}
	}
	return strings.Trim(pattern[i:], "*") == ""
}

// nodeInfo is what info says of a node.
type nodeInfo struct {
	UID      string `json:"uid"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	Clients  int    `json:"num_clients"`
	Users    int    `json:"num_users"`
	Channels int64  `json:"num_channels"`
	Subs     int64  `json:"num_subs"`
	Uptime   int64  `json:"uptime"`
}

func (n census) info() []byte {
	clients, users := n.srv.registry.count()
	b, _ := json.Marshal(nodeInfo{
		UID: n.srv.node(), Name: n.srv.deps.Name, Version: n.srv.version, Clients: clients, Users: users,
		Channels: n.srv.deps.Hub.Stats().Channels, Subs: n.srv.counters.subscriptions.Load(),
		Uptime: int64(time.Since(n.srv.started) / time.Second),
	})
	return b
}
