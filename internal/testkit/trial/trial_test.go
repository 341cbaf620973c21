package trial_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// failing is a test that may fail without failing this one.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper()                        {}
func (f *failing) Errorf(format string, a ...any) { f.said = fmt.Sprintf(format, a...) }
func (f *failing) Fatalf(format string, a ...any) {
	f.said = fmt.Sprintf(format, a...)
	runtime.Goexit()
}

func TestAConditionIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		trial.Eventually(t, "the third look", func() bool { calls++; return calls == 3 })
		if calls != 3 || time.Since(began) > time.Second {
			t.Errorf("%d looks in %v", calls, time.Since(began))
		}
	})
}

func TestAConditionThatNeverComesFailsTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, f := time.Now(), &failing{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			trial.Within(f, time.Minute, "pigs fly", func() bool { return false })
			t.Error("it came back")
		}()
		<-done
		if f.said != "not within 1m0s: pigs fly" || time.Since(began) < time.Minute {
			t.Errorf("%q after %v", f.said, time.Since(began))
		}
	})
}

const setting = "WEIR_TEST_OF_AGAIN"

func TestAllRunAgainUnderASetting(t *testing.T) {
	if v := os.Getenv(setting); v == "fail" {
		t.Fatal("as asked")
	}
	trial.Again(t, setting, "pass", "-test.run=^TestAllRunAgainUnderASetting$")
	f := &failing{TB: t}
	trial.Again(f, setting, "fail", "-test.run=^TestAllRunAgainUnderASetting$")
	if os.Getenv(setting) == "" && !strings.Contains(f.said, "as asked") {
		t.Errorf("of the other process's failure it reported %q", f.said)
	}
}
