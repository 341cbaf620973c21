package accept

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/observe/audit"
)

func auditLog() Indicator {
	return Indicator{
		Name: "audit", Title: "Admin audit log",
		Definition: "Changes on the admin listener by several clients at once, while the process is killed (kill -9) and started again on the same log.",
		Target:     "every answered change is on record with its answer, each client's in order; the chain is complete; what is changed, removed or moved in it is found; P99 of a change ≤ 1 s",
		Method:     "Each client numbers its changes. The log is read after the last kill; then copies of it are tampered with, in each of several ways, and checked.",
		criteria: []criterion{
			{name: "missing", what: "answered changes that are not on record", kind: none},
			{name: "unanswered", what: "answered changes without their answer on record", kind: none},
			{name: "order", what: "changes out of their client's order", kind: none},
			{name: "broken", what: "starts on which the chain was not complete", kind: none},
			{name: "unseen", what: "tampering that was not found", kind: none},
			{name: "kills", what: "kills", kind: some},
			{name: "p99", what: "P99 of a change", kind: atMost, limit: 1, unit: seconds, timed: true},
		},
		plots:   []plot{{"Time of a change", []string{"change"}, seconds}},
		measure: measureAudit,
	}
}

const auditClients = 4

// A changes is what the clients of the admin listener know.
type changes struct {
	mu       sync.Mutex
	answered []uint64 // their numbers
	next     [auditClients]uint64
	took     []float64
}

// number is that of a client's k-th change: no two are the same, and a client's rise.
func number(client int, k uint64) uint64 { return uint64(client+1)*1_000_000_000 + k }

// An auditRun is one measurement of audit.
type auditRun struct{ *world }

func measureAudit(ctx context.Context, of *world) error {
	w := auditRun{of}
	file := filepath.Join(w.dir, "audit.log")
	c := &changes{}
	stop := w.watch(ctx, nil, 0, time.Duration(w.plan.kills)*time.Second)
	defer stop()
	for k := range w.plan.kills {
		s, err := w.gateway(ctx, plainConfig, "--set", "admin.audit_log="+file)
		if err != nil {
			return err
		}
		w.change(ctx, s, c)
		s.Kill()
		s.Stop()
		w.ev.count("kills", 1, 1)
		w.progress("kill %d of %d", k+1, w.plan.kills)
	}
	// The last start removes an incomplete line, as every one did.
	s, err := w.gateway(ctx, plainConfig, "--set", "admin.audit_log="+file)
	if err != nil {
		w.ev.count("broken", 1, 1, err.Error())
	} else {
		s.Stop()
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := w.keep("audit.json", map[string]string{"log": string(text)}); err != nil {
		return err
	}
	slices.Sort(c.took)
	if n := len(c.took); n > 0 {
		w.ev.value("p99", c.took[(n*99)/100])
	}
	w.recorded(text, c.answered)
	w.tamper(text)
	return ctx.Err()
}

// change has clients make changes until the plan's number are answered; the process is killed
// then, whatever it does.
func (w auditRun) change(ctx context.Context, s *process.Server, c *changes) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := len(c.answered)
	var all sync.WaitGroup
	for i := range auditClients {
		all.Go(func() {
			for ctx.Err() == nil {
				c.mu.Lock()
				c.next[i]++
				n := number(i, c.next[i])
				c.mu.Unlock()
				began := time.Now()
				ok := disconnect(ctx, s, n)
				c.mu.Lock()
				if ok {
					c.answered = append(c.answered, n)
					c.took = append(c.took, time.Since(began).Seconds())
					w.ev.point("change", w.since(), time.Since(began).Seconds())
				}
				enough := len(c.answered)-before >= w.plan.actions
				c.mu.Unlock()
				if !ok || enough {
					return
				}
			}
		})
	}
	// The others' changes are under way when the first client has seen enough.
	for {
		c.mu.Lock()
		enough := len(c.answered)-before >= w.plan.actions
		c.mu.Unlock()
		if enough || !sleep(ctx, time.Millisecond) {
			break
		}
	}
	s.Kill()
	cancel()
	all.Wait()
}

// disconnect is a change that does nothing: there is no such connection. It reports whether it was
// answered.
func disconnect(ctx context.Context, s *process.Server, n uint64) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Admin+"/api/connections/"+strconv.FormatUint(n, 10)+"/disconnect", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode != http.StatusServiceUnavailable // which says that it is not on record
}

// recorded holds the log against what the clients know.
func (w auditRun) recorded(text []byte, answered []uint64) {
	started, done := map[uint64]uint64{}, map[uint64]bool{} // by N: the change, and whether it has an answer
	last := map[uint64]uint64{}                             // by client
	_, _, err := audit.Verify(bytes.NewReader(text), func(r audit.Record) {
		if r.Of != 0 {
			done[started[r.Of]] = true
			return
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(r.Do, "POST /api/connections/"), "/")
		n, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			return // another change
		}
		started[r.N] = n
		client := n / 1_000_000_000
		wrong := uint64(0)
		if n <= last[client] {
			wrong = 1
		}
		w.ev.count("order", wrong, 1)
		last[client] = n
	})
	if err != nil {
		w.ev.count("broken", 1, 1, err.Error())
	} else {
		w.ev.count("broken", 0, uint64(w.plan.kills+1))
	}
	there := map[uint64]bool{}
	for _, n := range started {
		there[n] = true
	}
	for _, n := range answered {
		var missing, unanswered uint64
		if !there[n] {
			missing = 1
		}
		if !done[n] {
			unanswered = 1
		}
		w.ev.count("missing", missing, 1)
		w.ev.count("unanswered", unanswered, 1)
	}
}

// tamper changes copies of the log in several ways, each of which has to be found.
func (w auditRun) tamper(text []byte) {
	lines := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) < 8 {
		return // not exercised
	}
	mid := len(lines) / 2
	for _, way := range []struct {
		name string
		do   func(l []string) []string
	}{
		{"a status changed", func(l []string) []string {
			for i := range l {
				if strings.Contains(l[i], `"status":404`) {
					l[i] = strings.Replace(l[i], `"status":404`, `"status":403`, 1)
					return l
				}
			}
			return l
		}},
		{"a line removed", func(l []string) []string { return slices.Delete(l, mid, mid+1) }},
		{"the first line removed", func(l []string) []string { return l[1:] }},
		{"two lines swapped", func(l []string) []string { l[mid], l[mid+1] = l[mid+1], l[mid]; return l }},
		{"a line repeated", func(l []string) []string { return slices.Insert(l, mid, l[mid]) }},
	} {
		_, _, err := audit.Verify(strings.NewReader(strings.Join(way.do(slices.Clone(lines)), "")), nil)
		if err == nil {
			w.ev.count("unseen", 1, 1, fmt.Sprintf("%s, of %d", way.name, len(lines)))
		} else {
			w.ev.count("unseen", 0, 1)
		}
	}
}
