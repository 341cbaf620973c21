package protocol

import (
	"maps"
	"slices"
)

// AppendCommand appends c as a client sends it.
func AppendCommand(dst []byte, e Encoding, c *Command) []byte {
	if e == JSON {
		w := objectOf(dst)
		w.uint("id", uint64(c.ID))
		if c.Kind != None {
			w.sub(c.Kind.String(), c.appendJSON)
		}
		return w.end()
	}
	return appendSized(dst, func(dst []byte) []byte {
		dst = appendUint(dst, 1, uint64(c.ID))
		if c.Kind == None {
			return dst
		}
		return appendMessage(dst, firstKind+int(c.Kind-Connect), c.appendProto)
	})
}

func (c *Command) appendJSON(dst []byte) []byte {
	switch c.Kind {
	case Connect:
		return c.Connect.AppendTo(dst)
	case Subscribe:
		return c.Sub.appendJSON(dst, true)
	}
	w := objectOf(dst)
	w.str("channel", c.Sub.Channel)
	w.str("token", c.Sub.Token)
	w.str("method", c.Method)
	w.raw("data", c.Sub.Data)
	w.int("limit", int64(c.Limit))
	if c.HasSince {
		w.sub("since", func(dst []byte) []byte {
			w := objectOf(dst)
			w.uint("offset", c.Since.Offset)
			w.str("epoch", c.Since.Epoch)
			return w.end()
		})
	}
	w.boolean("reverse", c.Reverse)
	w.int("type", int64(c.Type))
	return w.end()
}

// AppendTo appends r as JSON: a unidirectional client sends it so.
func (r *ConnectRequest) AppendTo(dst []byte) []byte {
	w := objectOf(dst)
	w.str("token", r.Token)
	w.raw("data", r.Data)
	if len(r.Subs) > 0 {
		w.sub("subs", func(dst []byte) []byte {
			w := objectOf(dst)
			for i := range r.Subs {
				w.sub(r.Subs[i].Channel, func(dst []byte) []byte { return r.Subs[i].appendJSON(dst, false) })
			}
			return w.end()
		})
	}
	w.str("name", r.Name)
	w.str("version", r.Version)
	if r.Headers != nil {
		w.sub("headers", func(dst []byte) []byte {
			w := objectOf(dst)
			for _, k := range slices.Sorted(maps.Keys(r.Headers)) {
				w.name(k)
				w.b = appendString(w.b, r.Headers[k])
			}
			return w.end()
		})
	}
	w.int("flag", r.Flag)
	return w.end()
}

func (r *SubscribeRequest) appendJSON(dst []byte, named bool) []byte {
	w := objectOf(dst)
	if named {
		w.str("channel", r.Channel)
	}
	w.str("token", r.Token)
	w.boolean("recover", r.Recover)
	w.str("epoch", r.Epoch)
	w.uint("offset", r.Offset)
	w.raw("data", r.Data)
	w.boolean("positioned", r.Positioned)
	w.boolean("recoverable", r.Recoverable)
	w.boolean("join_leave", r.JoinLeave)
	w.str("delta", r.Delta)
	if r.Filter != nil {
		w.sub("tf", r.Filter.appendJSON)
	}
	w.int("flag", r.Flag)
	w.int("type", int64(r.Type))
	return w.end()
}

func (f *Filter) appendJSON(dst []byte) []byte {
	w := objectOf(dst)
	w.str("op", f.Op)
	w.str("key", f.Key)
	w.str("cmp", f.Cmp)
	w.str("val", f.Val)
	list := func(n string, count int, element func([]byte, int) []byte) {
		if count == 0 {
			return
		}
		w.name(n)
		w.b = append(w.b, '[')
		for i := range count {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.b = element(w.b, i)
		}
		w.b = append(w.b, ']')
	}
	list("vals", len(f.Vals), func(dst []byte, i int) []byte { return appendString(dst, f.Vals[i]) })
	list("nodes", len(f.Nodes), func(dst []byte, i int) []byte { return f.Nodes[i].appendJSON(dst) })
	return w.end()
}

func (c *Command) appendProto(dst []byte) []byte {
	switch c.Kind {
	case Connect:
		return c.Connect.appendProto(dst)
	case Subscribe:
		return c.Sub.appendProto(dst, true)
	case History:
		dst = appendText(dst, 1, c.Sub.Channel)
		dst = appendUint(dst, 7, uint64(c.Limit))
		if c.HasSince {
			dst = appendMessage(dst, 8, func(dst []byte) []byte {
				return appendText(appendUint(dst, 1, c.Since.Offset), 2, c.Since.Epoch)
			})
		}
		return appendBool(dst, 9, c.Reverse)
	case Send:
		return appendText(dst, 1, c.Sub.Data)
	case RPC:
		return appendText(appendText(dst, 1, c.Sub.Data), 2, c.Method)
	case Refresh:
		return appendText(dst, 1, c.Sub.Token)
	}
	dst = appendText(dst, 1, c.Sub.Channel)
	dst = appendText(dst, 2, c.Sub.Data)  // publish
	dst = appendText(dst, 2, c.Sub.Token) // sub_refresh
	return appendUint(dst, 3, uint64(c.Type))
}

func (r *ConnectRequest) appendProto(dst []byte) []byte {
	dst = appendText(dst, 1, r.Token)
	dst = appendText(dst, 2, r.Data)
	for i := range r.Subs {
		dst = appendMessage(dst, 3, func(dst []byte) []byte {
			dst = appendText(dst, 1, r.Subs[i].Channel)
			return appendMessage(dst, 2, func(dst []byte) []byte { return r.Subs[i].appendProto(dst, false) })
		})
	}
	dst = appendText(dst, 4, r.Name)
	dst = appendText(dst, 5, r.Version)
	for _, k := range slices.Sorted(maps.Keys(r.Headers)) {
		dst = appendMessage(dst, 6, func(dst []byte) []byte {
			return appendText(appendText(dst, 1, k), 2, r.Headers[k])
		})
	}
	return appendUint(dst, 7, uint64(r.Flag))
}

func (r *SubscribeRequest) appendProto(dst []byte, named bool) []byte {
	if named {
		dst = appendText(dst, 1, r.Channel)
	}
	dst = appendText(dst, 2, r.Token)
	dst = appendBool(dst, 3, r.Recover)
	dst = appendText(dst, 6, r.Epoch)
	dst = appendUint(dst, 7, r.Offset)
	dst = appendText(dst, 8, r.Data)
	dst = appendBool(dst, 9, r.Positioned)
	dst = appendBool(dst, 10, r.Recoverable)
	dst = appendBool(dst, 11, r.JoinLeave)
	dst = appendText(dst, 12, r.Delta)
	if r.Filter != nil {
		dst = appendMessage(dst, 13, r.Filter.appendProto)
	}
	dst = appendUint(dst, 14, uint64(r.Flag))
	return appendUint(dst, 15, uint64(r.Type))
}

func (f *Filter) appendProto(dst []byte) []byte {
	dst = appendText(dst, 1, f.Op)
	dst = appendText(dst, 2, f.Key)
	dst = appendText(dst, 3, f.Cmp)
	dst = appendText(dst, 4, f.Val)
	for _, v := range f.Vals {
		dst = appendPresent(dst, 5, v)
	}
	for _, n := range f.Nodes {
		dst = appendMessage(dst, 6, n.appendProto)
	}
	return dst
}
