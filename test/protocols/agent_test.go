package protocols

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// patience is how long anything may take on a loaded machine.
const patience = 30 * time.Second

// An agent is a process that holds clients which others wrote: npm/agent.mjs or
// agent.py, which say how one talks with it.
type agent struct {
	t testing.TB // whose failure it is
	*process
}

type process struct {
	// Fixed at the start.
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed when nothing more comes

	mu        sync.Mutex
	last      int // id of the newest command
	answers   map[int]chan answer
	queues    map[string][]event // by "<from> <event>"
	changed   chan struct{}      // closed and replaced when an event comes
	sinks     map[string]func(event)
	requested map[string]func(data json.RawMessage) any
}

// An event is what a client reported.
type event struct {
	From, Event string
	Data, More  json.RawMessage
	Ask         int
}

// A fault is how a client refused.
type fault struct {
	Code    any
	Message string
	Body    string
}

type answer struct {
	result json.RawMessage
	fault  *fault
}

// obj is a JSON object.
type obj = map[string]any

// emit, ask, encoded and ref are the arguments that an agent makes something of.
func emit(event string) obj { return obj{"$emit": event} }
func ask(event string) obj  { return obj{"$ask": event} }
func encoded(v any) obj     { return obj{"$bytes": v} }
func ref(name string) obj   { return obj{"$ref": name} }

func nodeAgent(t testing.TB) *agent {
	t.Helper()
	judge.Need(t, "protocols")
	return startAgent(t, exec.Command("node", judge.Path("test", "protocols", "npm", "agent.mjs")))
}

func pythonAgent(t testing.TB) *agent {
	t.Helper()
	judge.Need(t, "protocols")
	cmd := exec.Command("python3", judge.Path("test", "protocols", "agent.py"))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+judge.Path(".cache", "centrifuge-python", "site"), "PYTHONDONTWRITEBYTECODE=1")
	return startAgent(t, cmd)
}

// startAgent runs cmd until the test ends.
func startAgent(t testing.TB, cmd *exec.Cmd) *agent {
	t.Helper()
	a := &agent{t, &process{
		cmd: cmd, ended: make(chan struct{}), answers: map[int]chan answer{}, queues: map[string][]event{}, changed: make(chan struct{}),
		sinks: map[string]func(event){}, requested: map[string]func(json.RawMessage) any{},
	}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if a.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(a.ended)
		a.read(stdout)
	})
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT) // a test may have left it stopped
		_ = a.stdin.Close()
		late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		wg.Wait()
		if err := cmd.Wait(); err != nil || !late.Stop() {
			t.Errorf("%s: %v\n%s", cmd.Path, err, stderr.Bytes())
		} else if t.Failed() && stderr.Len() > 0 {
			t.Logf("%s says:\n%s", cmd.Path, stderr.Bytes())
		}
	})
	return a
}

// with is the same agent for a part of its test.
func (a *agent) with(t testing.TB) *agent { return &agent{t, a.process} }

func (a *agent) read(r io.Reader) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var l struct {
			event
			ID     int
			Result json.RawMessage
			Error  *fault
		}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			a.t.Errorf("%s: line %.200q: %v", a.cmd.Path, sc.Bytes(), err)
			continue
		}
		a.mu.Lock()
		if l.ID != 0 {
			a.answers[l.ID] <- answer{l.Result, l.Error}
			delete(a.answers, l.ID)
			a.mu.Unlock()
			continue
		}
		key := l.From + " " + l.Event
		if l.Ask != 0 {
			f := a.requested[key]
			a.mu.Unlock()
			if f == nil {
				a.t.Errorf("no handler answers %s", key)
				continue
			}
			a.write(obj{"answer": l.Ask, "result": f(l.Data)})
			continue
		}
		sink := a.sinks[l.From]
		if sink == nil {
			a.queues[key] = append(a.queues[key], l.event)
			close(a.changed)
			a.changed = make(chan struct{})
		}
		a.mu.Unlock()
		if sink != nil {
			sink(l.event)
		}
	}
}

func (a *agent) write(line obj) {
	text, err := json.Marshal(line)
	if err != nil {
		a.t.Error(err)
		return
	}
	if _, err := a.stdin.Write(append(text, '\n')); err != nil {
		a.t.Errorf("%s: %v", a.cmd.Path, err)
	}
}

// try does what line says and returns the client's answer.
func (a *agent) try(line obj) (json.RawMessage, *fault) {
	a.t.Helper()
	c := make(chan answer, 1)
	a.mu.Lock()
	a.last++
	line["id"] = a.last
	a.answers[a.last] = c
	a.mu.Unlock()
	a.write(line)
	select {
	case r := <-c:
		return r.result, r.fault
	case <-a.ended:
		a.t.Fatalf("%v: the agent has ended", line)
		return nil, nil
	case <-time.After(patience):
		a.t.Fatalf("%v: no answer within %s", line, patience)
		return nil, nil
	}
}

func (a *agent) must(line obj) json.RawMessage {
	a.t.Helper()
	r, f := a.try(line)
	if f != nil {
		a.t.Fatalf("%.500v: %+v", line, *f)
	}
	return r
}

// then are the methods that are called at once on a thing that is made: each is its
// name and arguments.
type then [][]any

// on has the events of these names come to next; how says the library's method for it.
func on(how string, events ...string) then {
	var list then
	for _, e := range events {
		list = append(list, []any{how, e, emit(e)})
	}
	return list
}

// split takes the then out of arguments.
func split(args []any) ([]any, then) {
	if n := len(args); n > 0 {
		if list, ok := args[n-1].(then); ok {
			return args[:n-1], list
		}
	}
	return args, nil
}

// make makes a client named name. The last argument may be a then.
func (a *agent) make(kind, name string, args ...any) {
	a.t.Helper()
	args, list := split(args)
	a.must(obj{"new": kind, "as": name, "args": args, "then": list})
}

// call calls a method and returns its result.
func (a *agent) call(on, method string, args ...any) json.RawMessage {
	a.t.Helper()
	return a.must(obj{"on": on, "call": method, "args": args})
}

// name is call for a method that returns a thing, which is then known as name. The
// last argument may be a then.
func (a *agent) name(name, on, method string, args ...any) {
	a.t.Helper()
	args, list := split(args)
	a.must(obj{"on": on, "call": method, "args": args, "as": name, "then": list})
}

// refused calls a method that must fail, and returns how.
func (a *agent) refused(on, method string, args ...any) fault {
	a.t.Helper()
	r, f := a.try(obj{"on": on, "call": method, "args": args})
	if f == nil {
		a.t.Fatalf("%s.%s%v was not refused: %s", on, method, args, r)
		return fault{}
	}
	return *f
}

// get reads a property.
func (a *agent) get(on, path string) string {
	a.t.Helper()
	return text(a.must(obj{"on": on, "get": path}))
}

// answering has f answer the client's requests of that name.
func (a *agent) answering(from, event string, f func(data json.RawMessage) any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requested[from+" "+event] = f
}

// sink has f get all events of a thing, on the goroutine that reads.
func (a *agent) sink(from string, f func(event)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sinks[from] = f
}

// next takes the oldest event of that name that was not taken yet, waiting for it.
func (a *agent) next(from, name string) json.RawMessage {
	a.t.Helper()
	return a.event(from, name).Data
}

func (a *agent) event(from, name string) event {
	a.t.Helper()
	late := time.After(patience)
	key := from + " " + name
	for {
		a.mu.Lock()
		if q := a.queues[key]; len(q) > 0 {
			a.queues[key] = q[1:]
			a.mu.Unlock()
			return q[0]
		}
		changed := a.changed
		var rest []string
		for k, q := range a.queues {
			if len(q) > 0 && strings.HasPrefix(k, client(from)) {
				rest = append(rest, fmt.Sprintf("%s: %d, the last %.300s", k, len(q), q[len(q)-1].Data))
			}
		}
		a.mu.Unlock()
		select {
		case <-changed:
		case <-a.ended:
			a.t.Fatalf("no event %s: the agent has ended", key)
		case <-late:
			a.t.Fatalf("no event %s within %s; others: %q", key, patience, rest)
		}
	}
}

// client is whose subscription a name is, or the name.
func client(name string) string {
	name, _, _ = strings.Cut(name, "/")
	return name
}

// none fails if there is an event of that name that was not taken.
func (a *agent) none(from, name string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.queues[from+" "+name]; len(q) > 0 {
		a.t.Errorf("%s: event %s %s %s; none was to come", from, name, q[0].Data, q[0].More)
	}
}

// forget drops the events of that name which were not taken.
func (a *agent) forget(from, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.queues, from+" "+name)
}

// text is a JSON string without its quotes, or the JSON as it is.
func text(b json.RawMessage) string {
	var s string
	if json.Unmarshal(b, &s) == nil {
		return s
	}
	return string(b)
}

// short is a text as an agent prints it.
func short(s string) string {
	if len(s) > 4096 {
		return fmt.Sprintf("%s...%d", s[:32], len(s))
	}
	return s
}

// field reads a member of nested objects: field(b, "a", "b") is b["a"]["b"].
func field(t testing.TB, b json.RawMessage, path ...string) json.RawMessage {
	t.Helper()
	for _, p := range path {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatalf("%s in %.300s: %v", p, b, err)
		}
		b = m[p]
	}
	return b
}

// decode reads b into a value of type V.
func decode[V any](t testing.TB, b []byte) V {
	t.Helper()
	var v V
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%.300s: %v", b, err)
	}
	return v
}

// expect compares what b holds with want, as JSON.
func expect(t testing.TB, what string, b json.RawMessage, want any) {
	t.Helper()
	w, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got, exp any
	_ = json.Unmarshal(w, &exp)
	if len(b) > 0 {
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %.300s: %v", what, b, err)
		}
	}
	g, _ := json.Marshal(got)
	e, _ := json.Marshal(exp)
	if !bytes.Equal(g, e) {
		t.Errorf("%s: got %.500s, want %.500s", what, g, e)
	}
}
