package protocol

import (
	"encoding/binary"
	"fmt"
)

// nextProtobuf decodes one command with its length in front.
func nextProtobuf(b []byte, c *Command) ([]byte, error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, fmt.Errorf("%w: a command of another length than it says", ErrMalformed)
	}
	end := n + int(size)
	return b[end:], c.decode(b[n:end:end])
}

func (c *Command) decode(b []byte) error {
	return each(b, func(f field) error {
		switch {
		case f.num == 1:
			return f.uint32(&c.ID)
		case f.num < firstKind || f.num >= firstKind+int(kinds)-1:
			return nil
		}
		k := Kind(f.num-firstKind) + Connect
		if c.Kind != None && c.Kind != k {
			return fmt.Errorf("%w: %s and %s in one command", ErrMalformed, c.Kind, k)
		}
		switch c.Kind = k; k {
		case Connect:
			c.Connect = &ConnectRequest{}
			return f.message(c.Connect.field)
		case Subscribe:
			return f.message(c.Sub.field)
		default:
			return f.message(c.field)
		}
	})
}

// field reads a field of the small requests.
func (c *Command) field(f field) error {
	switch c.Kind {
	case Send, Refresh, RPC:
		return c.fieldOfConnection(f)
	case History:
		return c.historyField(f)
	case Ping:
		return nil
	}
	switch f.num {
	case 1:
		return f.str(&c.Sub.Channel)
	case 2:
		switch c.Kind {
		case Publish:
			return f.bytes(&c.Sub.Data)
		case SubRefresh:
			return f.str(&c.Sub.Token)
		}
	case 3:
		if c.Kind == Publish || c.Kind == SubRefresh {
			return f.int32(&c.Type)
		}
	}
	return nil
}

// fieldOfConnection reads a field of the requests that name no channel.
func (c *Command) fieldOfConnection(f field) error {
	switch {
	case f.num == 1 && c.Kind == Refresh:
		return f.str(&c.Sub.Token)
	case f.num == 1:
		return f.bytes(&c.Sub.Data)
	case f.num == 2 && c.Kind == RPC:
		return f.str(&c.Method)
	}
	return nil
}

func (c *Command) historyField(f field) error {
	switch f.num {
	case 1:
		return f.str(&c.Sub.Channel)
	case 7:
		return f.int32(&c.Limit)
	case 8:
		c.HasSince = true
		return f.message(c.Since.field)
	case 9:
		return f.boolean(&c.Reverse)
	}
	return nil
}

func (p *Position) field(f field) error {
	switch f.num {
	case 1:
		return f.uint64(&p.Offset)
	case 2:
		return f.str(&p.Epoch)
	}
	return nil
}

func (r *ConnectRequest) field(f field) error {
	switch f.num {
	case 1:
		return f.str(&r.Token)
	case 2:
		return f.bytes(&r.Data)
	case 3:
		sub, channel := SubscribeRequest{}, ""
		err := f.entry(&channel, func(v field) error { return v.message(sub.field) })
		sub.Channel = channel
		r.Subs = append(r.Subs, sub)
		return err
	case 4:
		return f.str(&r.Name)
	case 5:
		return f.str(&r.Version)
	case 6:
		if r.Headers == nil {
			r.Headers = map[string]string{}
		}
		var key, value string
		err := f.entry(&key, func(v field) error { return v.str(&value) })
		r.Headers[key] = value
		return err
	case 7:
		return f.int64(&r.Flag)
	}
	return nil
}

func (r *SubscribeRequest) field(f field) error {
	switch f.num {
	case 1:
		return f.str(&r.Channel)
	case 2:
		return f.str(&r.Token)
	case 3:
		return f.boolean(&r.Recover)
	case 6:
		return f.str(&r.Epoch)
	case 7:
		return f.uint64(&r.Offset)
	case 8:
		return f.bytes(&r.Data)
	case 9:
		return f.boolean(&r.Positioned)
	case 10:
		return f.boolean(&r.Recoverable)
	case 11:
		return f.boolean(&r.JoinLeave)
	case 12:
		return f.str(&r.Delta)
	case 13:
		budget := maxFilterNodes
		r.Filter = &Filter{}
		return r.Filter.decode(f, &budget, 0)
	case 14:
		return f.int64(&r.Flag)
	case 15:
		return f.int32(&r.Type)
	}
	return nil
}

func (x *Filter) decode(f field, budget *int, depth int) error {
	if *budget--; *budget < 0 || depth > maxDepth {
		return fmt.Errorf("%w: a filter of more than %d nodes", ErrMalformed, maxFilterNodes)
	}
	return f.message(func(f field) error {
		switch f.num {
		case 1:
			return f.str(&x.Op)
		case 2:
			return f.str(&x.Key)
		case 3:
			return f.str(&x.Cmp)
		case 4:
			return f.str(&x.Val)
		case 5:
			x.Vals = append(x.Vals, "")
			return f.str(&x.Vals[len(x.Vals)-1])
		case 6:
			n := &Filter{}
			x.Nodes = append(x.Nodes, n)
			return n.decode(f, budget, depth+1)
		}
		return nil
	})
}
