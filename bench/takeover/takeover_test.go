package main

import (
	"testing"
	"time"
)

// Messages are found wherever the bytes of their framing are cut.
func TestScannerFindsMessagesInAnyPieces(t *testing.T) {
	const text = "f\r\ndata: ^100 7$\n\nid: x\n\ndata: ^200 8$^300 10$"
	for cut := range len(text) {
		c := &client{}
		c.last.Store(6)
		c.data([]byte(text[:cut]))
		c.data([]byte(text[cut:]))
		if c.received != 3 || c.lost != 1 || c.repeated+c.reversed != 0 || c.last.Load() != 10 {
			t.Fatalf("cut at %d: %d received, %d lost, %d repeated, %d reordered", cut, c.received, c.lost, c.repeated, c.reversed)
		}
	}
}

func TestWhatIsRepeatedOrOutOfOrderIsCounted(t *testing.T) {
	c := &client{}
	for _, n := range []uint64{1, 2, 2, 4, 3} {
		c.account(time.Now().UnixNano(), n)
	}
	if c.repeated != 1 || c.lost != 1 || c.reversed != 1 {
		t.Errorf("%d repeated, %d lost, %d reordered", c.repeated, c.lost, c.reversed)
	}
}

func TestUsageThatRisesIsSeen(t *testing.T) {
	f := func(want bool, list ...int) {
		t.Helper()
		if got := rises(list, 5); got != want {
			t.Errorf("%v rises: %v, want %v", list, got, want)
		}
	}
	f(false, 10, 30, 31, 30, 31, 30, 32, 31)
	f(true, 10, 20, 30, 40, 50, 60, 70, 80)
	f(false, 1, 100) // too few
}
