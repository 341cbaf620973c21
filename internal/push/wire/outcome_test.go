package wire

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A client that gets 503 learns whether the message may be stored, and how to retry.
func TestUnavailableSaysWhetherTheMessageIsStored(t *testing.T) {
	f := func(err error, message, hint string) {
		t.Helper()
		e := ErrorOf(err)
		want := http.StatusServiceUnavailable
		if errors.Is(err, hub.ErrStorageFull) {
			want = http.StatusInsufficientStorage
		}
		if e.Status != want || !strings.Contains(e.Message, message) || !strings.Contains(e.Hint, hint) {
			t.Errorf("%v: %d %q, hint %q", err, e.Status, e.Message, e.Hint)
		}
	}
	down := fmt.Errorf("%w: no server", hub.ErrUnavailable)
	f(down, "not available", "nothing was stored")
	f(hub.ErrClosed, "not available", "nothing was stored")
	f(hub.ErrOverloaded, "overloaded", "nothing was stored")
	f(&hub.UncertainError{Err: down}, "not known", "may store it twice")
	f(fmt.Errorf("publish: %w", &hub.UncertainError{Key: "k1", Err: down}), "not known", `idempotency_key "k1"`)
	f(&hub.UncertainError{Key: "k1", Err: fmt.Errorf("stop: %w", hub.ErrClosed)}, "not known", `idempotency_key "k1"`)
	f(hub.ErrStorageFull, "storage is full", "nothing was stored")
	f(&hub.UncertainError{Key: "k1", Err: hub.ErrStorageFull}, "storage is full: it is not known", `idempotency_key "k1"`)
	if e := (&hub.UncertainError{Err: down}); !errors.Is(e, hub.ErrUnavailable) {
		t.Error("the cause is not found")
	}
}
