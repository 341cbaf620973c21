package rung

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// epoch is the life of a rung's numbering: there is only one.
const epoch = "r"

// maxBody bounds a publish request.
const maxBody = 1 << 20

// errBadPublish is what is wrong with any request that is none.
var errBadPublish = errors.New(`want {"channel":"name","data":…}`)

// A message is one publication.
type message struct {
	channel string
	offset  uint64
	time    int64 // milliseconds
	data    []byte
}

// A deliverer is a subscriber of a rung: it takes a message without waiting,
// and reports whether it did.
type deliverer interface {
	deliver(m *message, frame []byte) bool
}

// channels are the subscribers by channel: a map under a mutex, the same for
// all rungs with goroutines, so that only what the rung changes differs.
type channels struct {
	// encode, if not nil, makes the frame that all subscribers share.
	encode func(m *message) []byte
	extra  *Extra

	mu     sync.Mutex
	byName map[string]map[deliverer]struct{}
	offset uint64
}

func (c *channels) subscribe(name string, d deliverer) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName == nil {
		c.byName = map[string]map[deliverer]struct{}{}
	}
	if c.byName[name] == nil {
		c.byName[name] = map[deliverer]struct{}{}
	}
	c.byName[name][d] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.byName[name], d)
	}
}

// publish numbers a message and hands it to every subscriber of its channel.
func (c *channels) publish(name string, data []byte) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset++
	m := &message{channel: name, offset: c.offset, time: time.Now().UnixMilli(), data: data}
	var frame []byte
	if c.encode != nil {
		frame = c.encode(m)
	}
	for d := range c.byName[name] {
		if !d.deliver(m, frame) {
			c.extra.Add("dropped", 1)
		}
	}
	return m.offset
}

// A publication is the body of POST /api/publish.
type publication struct {
	Channel string          `json:"channel"`
	Data    json.RawMessage `json:"data"`
}

func (p *publication) check(err error) error {
	if err != nil || p.Channel == "" || len(p.Data) == 0 {
		return errBadPublish
	}
	return nil
}

// ServeHTTP answers POST /api/publish as an ordinary handler would.
func (c *channels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var p publication
	if err := p.check(json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&p)); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	offset := c.publish(p.Channel, p.Data)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(appendResult(nil, offset))
}

// appendResult appends the answer to a publish request.
func appendResult(dst []byte, offset uint64) []byte {
	dst = append(dst, `{"result":{"epoch":"`+epoch+`","offset":`...)
	dst = strconv.AppendUint(dst, offset, 10)
	return append(dst, "}}\n"...)
}

// appendPosition appends the message's place in the stream.
func appendPosition(dst []byte, offset uint64) []byte {
	dst = append(dst, epoch+"-"...)
	return strconv.AppendUint(dst, offset, 10)
}

// appendEnvelope appends the JSON that WebSocket subscribers get.
func appendEnvelope(dst []byte, m *message) []byte {
	dst = append(dst, `{"channel":`...)
	dst = strconv.AppendQuote(dst, m.channel)
	dst = append(dst, `,"id":"`...)
	dst = appendPosition(dst, m.offset)
	dst = append(dst, `","offset":`...)
	dst = strconv.AppendUint(dst, m.offset, 10)
	dst = append(dst, `,"time":`...)
	dst = strconv.AppendInt(dst, m.time, 10)
	dst = append(dst, `,"data":`...)
	dst = append(dst, m.data...)
	return append(dst, '}')
}
