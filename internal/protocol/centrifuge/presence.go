package centrifuge

import "github.com/weir-gateway/weir/internal/push/presence"

// join announces the client to others.
func (x *subscription) join() {
	if p := x.s.srv().deps.Presence; p != nil {
		x.present(p.Join)
	}
}

// present has join add the client to presence, if the channel has that.
func (x *subscription) present(join func(string, presence.Member) error) {
	pl := x.plan.Value()
	if pl.flags&tracked == 0 {
		return
	}
	m := presence.Member{Client: x.s.clientID(), User: x.s.account.user, Info: x.s.account.info}
	if o := x.owned(); o != nil {
		m.ChanInfo = o.info
	}
	if err := join(pl.name, m); err != nil {
		x.s.srv().log.Debug("presence", "channel", pl.name, "err", err)
	}
}

// left is called when the subscription is over, whatever ended it.
func (x *subscription) left() {
	pl := x.plan.Value()
	srv := x.s.srv()
	srv.counters.subscriptions.Add(-1)
	if pl.flags&tracked != 0 && srv.deps.Presence != nil && x.pending() == nil {
		srv.deps.Presence.Leave(pl.name, x.s.clientID())
	}
}
