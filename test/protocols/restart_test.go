package protocols

import (
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// The SDKs of Centrifugo and Pusher come back from planned restarts by themselves and
// recover what they missed, whether connections are refused meanwhile or wait in a kept
// socket.
func TestTheSDKsComeBackFromPlannedRestarts(t *testing.T) {
	f := func(name string, keeper judge.Keeper) {
		t.Run(name, func(t *testing.T) {
			s := judge.New(t, judge.Options{Build: judge.Plain, Keeper: keeper, Config: config()})
			js, py := nodeAgent(t), pythonAgent(t)
			c := newCrew(t)
			c.sail(js, py, s.Public)
			a := nodeAgent(t)
			pusherApp(a, s.Public)
			for _, kind := range []string{"Pusher", "BrowserPusher"} {
				pusherClient(a, kind, s.Public, kind, "u")
				join(a, kind, "presence-room", "made")
			}
			p := &judge.Publisher{Addr: s.Public}
			stop := c.publish(p, channels, 200)
			for range 3 {
				c.more(p, 200)
				before, begin := c.counts(), time.Now()
				s.Terminate()
				s.Start()
				c.up(before)
				t.Logf("the Centrifuge SDKs are back after %s", time.Since(begin).Round(time.Millisecond))
				for _, kind := range []string{"Pusher", "BrowserPusher"} {
					a.next(kind, "connected")
					a.next(kind+"/presence-room", "pusher:subscription_succeeded")
				}
				t.Logf("pusher-js is back after %s", time.Since(begin).Round(time.Millisecond))
			}
			c.more(p, 200)
			stop()
			c.verdict(p.Acked())
			c.offsets()
		})
	}
	f("nothing kept", judge.KeepsNothing)
	f("sockets kept", judge.DescriptorStore)
}
