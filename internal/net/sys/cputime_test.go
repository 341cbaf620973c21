package sys

import (
	"os"
	"testing"
)

func TestCPUTimeOfIsTheProcessesOwn(t *testing.T) {
	before := CPUTime()
	for x := 0; CPUTime() == before; x++ { // until some is used
		_ = x
	}
	got, err := CPUTimeOf(os.Getpid())
	if after := CPUTime(); err != nil || got <= 0 || got > after+after/2+1e7 {
		t.Errorf("CPUTimeOf(own) = %v, %v; getrusage says %v", got, err, after)
	}
	if d, err := CPUTimeOf(1<<22 + 1); err == nil {
		t.Errorf("CPUTimeOf(no process) = %v without an error", d)
	}
}
