package protocol

import (
	"fmt"
	"unicode/utf8"
)

// nextJSON decodes one command. Text that is not UTF-8 is not JSON (RFC 8259 §8.1),
// and would end the connections of those whom it is passed on to.
func nextJSON(b []byte, c *Command) ([]byte, error) {
	s := scanner{jsonScanner{b: b}}
	if err := s.command(c); err != nil {
		return nil, err
	}
	if !utf8.Valid(b[:s.i]) {
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrMalformed)
	}
	s.space()
	return b[s.i:], nil
}

func (s *scanner) command(c *Command) error {
	return s.object(func(name []byte) error {
		if string(name) == "id" {
			return s.uint32(&c.ID)
		}
		for k := Connect; k < kinds; k++ {
			if string(name) != kindNames[k] {
				continue
			}
			if c.Kind != None {
				return s.fail("%s and %s in one command", c.Kind, k)
			}
			c.Kind = k
			return s.request(c)
		}
		return s.skip()
	})
}

func (s *scanner) request(c *Command) error {
	switch c.Kind {
	case Connect:
		c.Connect = &ConnectRequest{}
		return s.object(func(name []byte) error { return s.connectField(c.Connect, name) })
	case Subscribe:
		return s.object(func(name []byte) error { return s.subscribeField(&c.Sub, name) })
	default:
		return s.object(func(name []byte) error { return s.field(c, name) })
	}
}

// field reads a field of the small requests. A field of another one is unknown.
func (s *scanner) field(c *Command, name []byte) error {
	history := c.Kind == History
	switch n := string(name); {
	case n == "channel" && c.Kind != Send && c.Kind != RPC && c.Kind != Refresh && c.Kind != Ping:
		return s.str(&c.Sub.Channel)
	case n == "token" && (c.Kind == Refresh || c.Kind == SubRefresh):
		return s.str(&c.Sub.Token)
	case n == "data" && (c.Kind == Publish || c.Kind == Send || c.Kind == RPC):
		return s.data(&c.Sub.Data)
	case n == "method" && c.Kind == RPC:
		return s.str(&c.Method)
	case n == "type" && (c.Kind == Publish || c.Kind == SubRefresh):
		return s.int32(&c.Type)
	case n == "limit" && history:
		return s.int32(&c.Limit)
	case n == "reverse" && history:
		return s.boolean(&c.Reverse)
	case n == "since" && history:
		c.HasSince = true
		return s.position(&c.Since)
	default:
		return s.skip()
	}
}

func (s *scanner) data(to *[]byte) (err error) {
	*to, err = s.raw()
	return err
}

func (s *scanner) position(p *Position) error {
	return s.object(func(name []byte) error {
		switch string(name) {
		case "offset":
			return s.uint(&p.Offset, 64)
		case "epoch":
			return s.str(&p.Epoch)
		}
		return s.skip()
	})
}

func (s *scanner) connectField(r *ConnectRequest, name []byte) error {
	switch string(name) {
	case "token":
		return s.str(&r.Token)
	case "data":
		return s.data(&r.Data)
	case "subs":
		return s.object(func(channel []byte) error {
			sub := SubscribeRequest{}
			err := s.object(func(name []byte) error { return s.subscribeField(&sub, name) })
			sub.Channel = string(channel)
			r.Subs = append(r.Subs, sub)
			return err
		})
	case "name":
		return s.str(&r.Name)
	case "version":
		return s.str(&r.Version)
	case "headers":
		return s.stringMap(&r.Headers)
	case "flag":
		return s.int(&r.Flag, 64)
	}
	return s.skip()
}

func (s *scanner) subscribeField(r *SubscribeRequest, name []byte) error {
	switch string(name) {
	case "channel":
		return s.str(&r.Channel)
	case "token":
		return s.str(&r.Token)
	case "recover":
		return s.boolean(&r.Recover)
	case "epoch":
		return s.str(&r.Epoch)
	case "offset":
		return s.uint(&r.Offset, 64)
	case "data":
		return s.data(&r.Data)
	case "positioned":
		return s.boolean(&r.Positioned)
	case "recoverable":
		return s.boolean(&r.Recoverable)
	case "join_leave":
		return s.boolean(&r.JoinLeave)
	case "delta":
		return s.str(&r.Delta)
	case "tf":
		budget := maxFilterNodes
		var err error
		r.Filter, err = s.filter(&budget)
		return err
	case "flag":
		return s.int(&r.Flag, 64)
	case "type":
		return s.int32(&r.Type)
	}
	return s.skip()
}

func (s *scanner) filter(budget *int) (*Filter, error) {
	if *budget--; *budget < 0 {
		return nil, s.fail("a filter of more than %d nodes", maxFilterNodes)
	}
	f := &Filter{}
	return f, s.object(func(name []byte) error {
		switch string(name) {
		case "op":
			return s.str(&f.Op)
		case "key":
			return s.str(&f.Key)
		case "cmp":
			return s.str(&f.Cmp)
		case "val":
			return s.str(&f.Val)
		case "vals":
			return s.array(func() error {
				f.Vals = append(f.Vals, "")
				return s.str(&f.Vals[len(f.Vals)-1])
			})
		case "nodes":
			return s.array(func() error {
				n, err := s.filter(budget)
				f.Nodes = append(f.Nodes, n)
				return err
			})
		}
		return s.skip()
	})
}

// ParseConnect decodes the bare connect request of the unidirectional transports.
// Empty b is an empty request.
func ParseConnect(b []byte) (*ConnectRequest, error) {
	r := &ConnectRequest{}
	s := scanner{jsonScanner{b: b}}
	if s.peek() == 0 && s.i == len(b) {
		return r, nil
	}
	if err := s.object(func(name []byte) error { return s.connectField(r, name) }); err != nil {
		return nil, err
	}
	if s.peek(); s.i != len(b) {
		return nil, s.fail("more than one object")
	}
	if !utf8.Valid(b) {
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrMalformed)
	}
	return r, nil
}
