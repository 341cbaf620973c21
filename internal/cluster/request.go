package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bounds of what goes over the bus at a time.
const (
	// MaxQuestion bounds what Request and RequestNode send.
	MaxQuestion = 480 << 10
	// MaxAnswer bounds what a handler returns. It goes in parts.
	MaxAnswer = 16 << 20

	partBytes = 480 << 10
	maxTopic  = 64
	// patience is how long a question without a deadline waits.
	patience = 10 * time.Second
)

// States of an answer.
const (
	answered byte = iota
	noHandler
	busy
	tooLarge
)

// An question is one question on its way. Its fields are under questions.mu.
type question struct {
	waiting map[string]*partial
	answers map[string][]byte
	errs    map[string]error
	done    chan struct{} // closed when no answer is awaited
}

// A partial is an answer that comes in parts.
type partial struct {
	parts [][]byte
	bytes int
	have  int
}

// lose ends the wait for a node that has gone. The caller holds mu.
func (a *question) lose(id string) {
	if _, ok := a.waiting[id]; ok {
		a.settle(id, nil, ErrNoNode)
	}
}

func (a *question) settle(id string, data []byte, err error) {
	delete(a.waiting, id)
	if err != nil {
		a.errs[id] = err
	} else {
		a.answers[id] = data
	}
	if len(a.waiting) == 0 {
		close(a.done)
	}
}

// Request puts a question to every node that lives, this one included, and returns what
// they answered by node. missing are the nodes that did not: they went, were not
// seen before ctx ended, have no handler or too much to do. err says only why
// no node was asked. Without a deadline in ctx it is 10s.
func (c *Cluster) Request(ctx context.Context, topic string, data []byte) (answers map[string][]byte, missing []string, err error) {
	c.mu.Lock()
	nodes := c.alive
	c.mu.Unlock()
	a, err := c.put(ctx, nodes, "", topic, data)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range nodes {
		if _, ok := a.answers[id]; !ok {
			missing = append(missing, id)
		}
	}
	return a.answers, missing, nil
}

// RequestNode puts a question to one node and returns its answer. Without a deadline in
// ctx it is 10s.
func (c *Cluster) RequestNode(ctx context.Context, node, topic string, data []byte) ([]byte, error) {
	if !c.Alive(node) {
		return nil, fmt.Errorf("%w: %.40q", ErrNoNode, node)
	}
	a, err := c.put(ctx, []string{node}, node, topic, data)
	if err != nil {
		return nil, err
	}
	if b, ok := a.answers[node]; ok {
		return b, nil
	}
	if err := a.errs[node]; err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("ask %s of node %s: %w", topic, node, cmp.Or(ctx.Err(), context.DeadlineExceeded))
}

// put sends the question to nodes and waits. The caller owns what it returns.
func (c *questions) put(ctx context.Context, nodes []string, only, topic string, data []byte) (*question, error) {
	switch {
	case topic == "" || len(topic) > maxTopic:
		return nil, fmt.Errorf("ask %.80q: a topic has 1 to %d bytes", topic, maxTopic)
	case len(data) > MaxQuestion:
		return nil, fmt.Errorf("ask %s: %d bytes, the bound is %d: %w", topic, len(data), MaxQuestion, ErrTooLarge)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	a := &question{
		waiting: make(map[string]*partial, len(nodes)),
		answers: make(map[string][]byte, len(nodes)),
		errs:    make(map[string]error),
		done:    make(chan struct{}),
	}
	for _, id := range nodes {
		a.waiting[id] = &partial{}
	}
	c.mu.Lock()
	if len(c.pending) >= maxPending {
		c.mu.Unlock()
		return nil, fmt.Errorf("ask %s: %w", topic, ErrBusy)
	}
	c.lastAsk++
	id := c.lastAsk
	c.pending[id] = a
	for _, n := range nodes {
		if n != c.self && c.nodes[n] == nil {
			a.lose(n) // it went since nodes was taken
		}
	}
	c.mu.Unlock()
	err := c.send(nodes, only, id, topic, data)
	if err == nil {
		select {
		case <-a.done:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", topic, err)
	}
	return a, nil
}

// send brings the question to the nodes; to this one without the bus.
func (c *questions) send(nodes []string, only string, id uint64, topic string, data []byte) error {
	if slices.Contains(nodes, c.self) {
		c.serve(c.self, id, topic, data)
	}
	msg := binary.AppendUvarint(nil, id)
	msg = append(msg, byte(len(topic)))
	msg = append(msg, topic...)
	msg = append(msg, data...)
	switch {
	case only == c.self || (only == "" && len(nodes) == 1):
		return nil
	case only != "":
		return c.bus.SendTo(only, requestTopic, msg)
	default:
		return c.bus.Broadcast(requestTopic, msg)
	}
}

// onAsk is called by the bus.
func (c *questions) onAsk(from string, data []byte) {
	if from == c.self {
		return
	}
	id, n := binary.Uvarint(data)
	if n <= 0 || len(data) <= n || len(data) < n+1+int(data[n]) {
		c.malformed.Add(1)
		return
	}
	topic := string(data[n+1 : n+1+int(data[n])])
	c.serve(from, id, topic, slices.Clone(data[n+1+len(topic):]))
}

// serve has the handler answer, on a goroutine if there is a slot for it.
func (c *questions) serve(from string, id uint64, topic string, data []byte) {
	c.mu.Lock()
	f, state := c.handlers[topic], answered
	switch {
	case c.ended:
		state = busy
	case f == nil:
		state = noHandler
	default:
		select {
		case c.work <- struct{}{}:
			c.wg.Add(1) // under mu: Run waits after it has set ended
		default:
			state = busy
		}
	}
	c.mu.Unlock()
	if state != answered {
		if state == busy {
			c.refused.Add(1)
		}
		c.reply(from, id, state, nil)
		return
	}
	go func() {
		defer c.wg.Done()
		defer func() { <-c.work }()
		answer := f(from, data)
		if len(answer) > MaxAnswer {
			c.reply(from, id, tooLarge, nil)
			return
		}
		c.reply(from, id, answered, answer)
	}()
}

// reply sends an answer in parts: id, state, number of the part, number of parts, bytes.
func (c *questions) reply(to string, id uint64, state byte, data []byte) {
	if to == c.self {
		c.settle(to, id, state, 0, 1, data)
		return
	}
	parts := max(1, (len(data)+partBytes-1)/partBytes)
	for i := range parts {
		part := data[i*partBytes : min(len(data), (i+1)*partBytes)]
		msg := binary.AppendUvarint(make([]byte, 0, len(part)+16), id)
		msg = append(msg, state)
		msg = binary.AppendUvarint(msg, uint64(i))
		msg = binary.AppendUvarint(msg, uint64(parts))
		if err := c.bus.SendTo(to, replyTopic, append(msg, part...)); err != nil {
			c.log.Debug("answer not sent", "node", to, "err", err)
			return
		}
	}
}

// onReply is called by the bus.
func (c *questions) onReply(from string, data []byte) {
	id, n := binary.Uvarint(data)
	if n <= 0 || len(data) <= n {
		c.malformed.Add(1)
		return
	}
	state, rest := data[n], data[n+1:]
	part, n1 := binary.Uvarint(rest)
	parts, n2 := binary.Uvarint(rest[max(n1, 0):])
	if n1 <= 0 || n2 <= 0 || parts == 0 || parts > MaxAnswer/partBytes+1 || part >= parts {
		c.malformed.Add(1)
		return
	}
	c.settle(from, id, state, int(part), int(parts), slices.Clone(rest[n1+n2:]))
}

// settle takes a part of an answer. One that is no longer awaited is dropped.
func (c *questions) settle(from string, id uint64, state byte, part, parts int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.pending[id]
	if a == nil {
		return
	}
	p := a.waiting[from]
	if p == nil {
		return
	}
	if state != answered {
		a.settle(from, nil, stateError(state))
		return
	}
	if p.parts == nil {
		p.parts = make([][]byte, parts)
	}
	if parts != len(p.parts) || p.parts[part] != nil {
		return
	}
	if data == nil {
		data = []byte{}
	}
	p.parts[part], p.have, p.bytes = data, p.have+1, p.bytes+len(data)
	if p.have < parts {
		return
	}
	whole := data
	if parts > 1 {
		whole = slices.Concat(p.parts...)
	}
	a.settle(from, whole, nil)
}

func stateError(state byte) error {
	switch state {
	case noHandler:
		return ErrNoHandler
	case busy:
		return ErrBusy
	case tooLarge:
		return ErrTooLarge
	}
	return errors.New("an answer of unknown form")
}

// endPending ends all waits when this node no longer listens, and has it answer no more.
func (c *questions) endPending() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, a := range c.pending {
		for id := range a.waiting {
			if id != c.self {
				a.lose(id)
			}
		}
	}
}
