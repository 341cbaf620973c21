package protocol

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
)

// AppendCommand appends c as a client sends it.
func AppendCommand(dst []byte, e Encoding, c *Command) []byte {
	return appendObject(dst, e, func(w writer) writer {
		w = w.uint("id", 1, uint64(c.ID))
		if c.Kind == None {
			return w
		}
		return w.message(c.Kind.String(), firstKind+int(c.Kind-Connect), c.fields)
	})
}

func (c *Command) fields(w writer) writer {
	switch c.Kind {
	case Connect:
		return c.Connect.fields(w)
	case Subscribe:
		return c.Sub.fields(w.str("channel", 1, c.Sub.Channel))
	case History:
		w = w.str("channel", 1, c.Sub.Channel).int("limit", 7, int64(c.Limit))
		if c.HasSince {
			w = w.message("since", 8, func(w writer) writer {
				return w.uint("offset", 1, c.Since.Offset).str("epoch", 2, c.Since.Epoch)
			})
		}
		return w.boolean("reverse", 9, c.Reverse)
	case Send, RPC:
		return w.data("data", 1, c.Sub.Data).str("method", 2, c.Method)
	case Refresh:
		return w.str("token", 1, c.Sub.Token)
	}
	w = w.str("channel", 1, c.Sub.Channel)
	w = w.data("data", 2, c.Sub.Data)  // publish
	w = w.str("token", 2, c.Sub.Token) // sub_refresh
	return w.int("type", 3, int64(c.Type))
}

func (r *ConnectRequest) fields(w writer) writer {
	w = w.str("token", 1, r.Token).data("data", 2, r.Data)
	if len(r.Subs) > 0 {
		channels, next := make([]string, len(r.Subs)), 0
		for i := range r.Subs {
			channels[i] = r.Subs[i].Channel
		}
		w = w.entries("subs", 3, channels, func(w writer, name, _ string) writer { // a channel may be there twice
			next++
			return w.message(name, 2, r.Subs[next-1].fields)
		})
	}
	w = w.str("name", 4, r.Name).str("version", 5, r.Version)
	if r.Headers != nil {
		w = w.entries("headers", 6, slices.Sorted(maps.Keys(r.Headers)), func(w writer, name, k string) writer { return w.always(name, 2, r.Headers[k]) })
	}
	return w.int("flag", 7, r.Flag)
}

// fields writes all but the channel.
func (r *SubscribeRequest) fields(w writer) writer {
	w = w.str("token", 2, r.Token).boolean("recover", 3, r.Recover).str("epoch", 6, r.Epoch).uint("offset", 7, r.Offset).data("data", 8, r.Data)
	w = w.boolean("positioned", 9, r.Positioned).boolean("recoverable", 10, r.Recoverable).boolean("join_leave", 11, r.JoinLeave).str("delta", 12, r.Delta)
	if r.Filter != nil {
		w = w.message("tf", 13, r.Filter.fields)
	}
	return w.int("flag", 14, r.Flag).int("type", 15, int64(r.Type))
}

func (f *Filter) fields(w writer) writer {
	w = w.str("op", 1, f.Op).str("key", 2, f.Key).str("cmp", 3, f.Cmp).str("val", 4, f.Val)
	if len(f.Vals) > 0 {
		w = w.list("vals", 5, len(f.Vals), func(w writer, i int) writer { return w.bare(f.Vals[i]) })
	}
	if len(f.Nodes) > 0 {
		w = w.list("nodes", 6, len(f.Nodes), func(w writer, i int) writer { return w.object(f.Nodes[i].fields) })
	}
	return w
}

// bare writes a string that is an element of a list.
func (w writer) bare(v string) writer {
	if w.e == JSON {
		w.b = jsontext.AppendString(w.b, v)
	} else {
		w.b = append(binary.AppendUvarint(w.b, uint64(len(v))), v...)
	}
	return w
}
