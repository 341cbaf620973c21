package governor

import (
	"strings"
	"testing"
)

const profile = `goroutine profile: total 4
2 @ 0x1 0x2
#	0x1	internal/poll.runtime_pollWait+0x84	/src/netpoll.go:351
#	0x2	main.reader+0x9	/src/r.go:1

1 @ 0x3 0x4
# labels: {"loop":"1"}
#	0x3	main.handlerOfOne+0x1	/src/a.go:5
#	0x4	github.com/weir-gateway/weir/internal/net/eventloop.(*Loop).run+0x2	/src/loop.go:9

1 @ 0x5 0x6
#	0x5	github.com/weir-gateway/weir/internal/net/sys.EpollWait+0x1	/src/epoll.go:5
#	0x6	github.com/weir-gateway/weir/internal/net/eventloop.(*Loop).run+0x2	/src/loop.go:9

1 @ 0x7 0x8
#	0x7	main.handlerOfAnother+0x1	/src/b.go:7
#	0x8	github.com/weir-gateway/weir/internal/net/eventloop.(*Loop).run+0x2	/src/loop.go:9
`

func TestALoopsStackIsFoundByItsLabelOrItsPlace(t *testing.T) {
	f := func(text string, loop int, has, not string) {
		t.Helper()
		got := findStack(text, loop)
		if !strings.Contains(got, has) || not != "" && strings.Contains(got, not) {
			t.Errorf("loop %d is at\n%swant %s", loop, got, has)
		}
	}
	f(profile, 1, "main.handlerOfOne+0x1 /src/a.go:5\n", "handlerOfAnother")
	f(strings.ReplaceAll(profile, "# labels", "# other"), 0, "handlerOfAnother", "EpollWait")
	if got := findStack("", 0); got != "" {
		t.Errorf("of nothing %q", got)
	}
}

func FuzzFindStack(f *testing.F) {
	f.Add(profile, 1)
	f.Add(profile, 0)
	f.Fuzz(func(t *testing.T, text string, loop int) {
		if got := findStack(text, loop); len(got) > 0 && !strings.Contains(text, "0x") {
			t.Errorf("frames %q come from nowhere", got)
		}
	})
}
