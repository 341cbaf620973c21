package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func decode(t *testing.T, e Encoding, b []byte) []Command {
	t.Helper()
	var list []Command
	for len(b) > 0 {
		var c Command
		rest, err := Next(b, e, &c)
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		list, b = append(list, c), rest
	}
	return list
}

func TestCommandsInJSON(t *testing.T) {
	f := func(text string, want ...Command) {
		t.Helper()
		if got := decode(t, JSON, []byte(text)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", text, got, want)
		}
	}
	sub := SubscribeRequest{Channel: "news", Flag: 1}
	f(`{"connect":{"token":"eyJ...","name":"js"},"id":1}`+"\n"+`{"subscribe":{"channel":"news","flag":1},"id":2}`,
		Command{ID: 1, Kind: Connect, Connect: &ConnectRequest{Token: "eyJ...", Name: "js"}}, Command{ID: 2, Kind: Subscribe, Sub: sub})
	f(`{"connect":{},"id":1}`, Command{ID: 1, Kind: Connect, Connect: &ConnectRequest{}})
	f(`{"id":1,"connect":{"subs":{"#42":{"recover":true,"epoch":"ab","offset":3}},"data":{"a":[1]},"headers":{"x":"y"}}}`,
		Command{ID: 1, Kind: Connect, Connect: &ConnectRequest{
			Subs: []SubscribeRequest{{Channel: "#42", Recover: true, Epoch: "ab", Offset: 3}}, Data: []byte(`{"a":[1]}`), Headers: map[string]string{"x": "y"},
		}})
	f(`{"id":5,"subscribe":{"channel":"news","recover":true,"epoch":"xcf3","offset":8,"flag":1}}`,
		Command{ID: 5, Kind: Subscribe, Sub: SubscribeRequest{Channel: "news", Recover: true, Epoch: "xcf3", Offset: 8, Flag: 1}})
	f(`{"id":6,"publish":{"channel":"news","data":{"x":1}}}`, Command{ID: 6, Kind: Publish, Sub: SubscribeRequest{Channel: "news", Data: []byte(`{"x":1}`)}})
	f(`{"id":7,"presence":{"channel":"news"}}`, Command{ID: 7, Kind: Presence, Sub: SubscribeRequest{Channel: "news"}})
	f(`{"id":8,"presence_stats":{"channel":"news"}}`, Command{ID: 8, Kind: PresenceStats, Sub: SubscribeRequest{Channel: "news"}})
	f(`{"id":9,"history":{"channel":"news","limit":2,"since":{"offset":9,"epoch":"xcf3"}}}`,
		Command{ID: 9, Kind: History, Sub: SubscribeRequest{Channel: "news"}, Limit: 2, HasSince: true, Since: Position{9, "xcf3"}})
	f(`{"id":10,"rpc":{"method":"getQuote","data":{"s":"EURUSD"}}}`, Command{ID: 10, Kind: RPC, Method: "getQuote", Sub: SubscribeRequest{Data: []byte(`{"s":"EURUSD"}`)}})
	f(`{"id":11,"unsubscribe":{"channel":"news"}}`, Command{ID: 11, Kind: Unsubscribe, Sub: SubscribeRequest{Channel: "news"}})
	f(`{"send":{"data":{"fire":"forget"}}}`, Command{Kind: Send, Sub: SubscribeRequest{Data: []byte(`{"fire":"forget"}`)}})
	f(`{"id":3,"refresh":{"token":"t"}}`, Command{ID: 3, Kind: Refresh, Sub: SubscribeRequest{Token: "t"}})
	f(`{"id":3,"sub_refresh":{"channel":"c","token":"t"}}`, Command{ID: 3, Kind: SubRefresh, Sub: SubscribeRequest{Channel: "c", Token: "t"}})
	f("{}", Command{})
	f(" { } \r\n\n {\"id\" : 4 , \"unknown\": [null, -1.5e3, {\"a\":\"\\ud83d\\ude00\"}] } ", Command{}, Command{ID: 4})
	f(`{"id":2,"unsubscribe":{"channel":"\u00e4\n\ud83d\ude00\ud800"}}`, Command{ID: 2, Kind: Unsubscribe, Sub: SubscribeRequest{Channel: "ä\n😀\ufffd"}})
	f(`{"id":2,"connect":null,"unsubscribe":{"channel":null}}`, Command{ID: 2, Kind: Unsubscribe})
}

func TestWhatIsNoCommandIsRefused(t *testing.T) {
	f := func(e Encoding, text string) {
		t.Helper()
		var c Command
		if _, err := Next([]byte(text), e, &c); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v, %+v", text, err, c)
		}
	}
	for _, text := range []string{
		"", "x", "[]", "1", `"a"`, "{", `{"id"}`, `{"id":}`, `{"id":1,}`, `{"id":-1}`, `{"id":1.5}`, `{"id":4294967296}`, `{"id":"1"}`, `{"id":01}`,
		`{"connect":[]}`, `{"connect":{},"subscribe":{}}`, `{"publish":{"data":{"a":}}}`, `{"publish":{"data":"a` + "\n" + `b"}}`,
		`{"publish":{"data":"\x"}}`, `{"publish":{"data":"\u12"}}`, "{\"publish\":{\"data\":\"\xff\"}}", `{"publish":{"data":tru}}`, `{"publish":{"data":1.}}`,
		`{"history":{"limit":99999999999}}`, `{"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`,
		`{"subscribe":{"tf":` + strings.Repeat(`{"nodes":[`, 100) + strings.Repeat(`]}`, 100) + `}}`,
		`{"subscribe":{"tf":{"nodes":[` + strings.TrimSuffix(strings.Repeat(`{},`, 100), ",") + `]}}}`,
	} {
		f(JSON, text)
	}
	for _, text := range []string{"\x05", "\x01\x00", "\x02\x08", "\x02\x0f\x01", "\x03\x08\xff\xff", "\x04\x0a\x01\x61\x01", "\x04\x2a\x02\x0a\x05", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x05\x2a\x03\x0a\x01\xff"} {
		f(Protobuf, text)
	}
}

// wire examples: what SDKs expect, byte by byte.
func TestRepliesInJSON(t *testing.T) {
	f := func(want string, got []byte) {
		t.Helper()
		if string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if !json.Valid(got) {
			t.Errorf("%s is not JSON", got)
		}
	}
	f(`{"id":1,"connect":{"client":"2c7e...","version":"6.9.1 OSS","expires":true,"ttl":3600,"ping":25,"pong":true}}`,
		AppendReply(nil, JSON, 1, &ConnectResult{Client: "2c7e...", Version: "6.9.1 OSS", Expires: true, TTL: 3600, Ping: 25, Pong: true}))
	f(`{"id":2,"subscribe":{"recoverable":true,"epoch":"xcf3","offset":7,"positioned":true}}`,
		AppendReply(nil, JSON, 2, &SubscribeResult{Recoverable: true, Positioned: true, Epoch: "xcf3", Offset: 7}))
	f(`{"id":1,"connect":{"subs":{"#42":{"recoverable":true,"epoch":"ab","offset":3}}}}`,
		AppendReply(nil, JSON, 1, &ConnectResult{Subs: map[string]*SubscribeResult{"#42": {Recoverable: true, Epoch: "ab", Offset: 3}}}))
	f(`{"push":{"channel":"news","pub":{"data":{"t":"hi"},"offset":8,"tags":{"lang":"en"}}}}`,
		AppendPush(nil, JSON, false, "news", &Publication{Data: []byte("{\"t\":\n\"hi\"}\r\n"), Offset: 8, Tags: map[string]string{"lang": "en"}}))
	f(`{"id":1,"error":{"code":109,"message":"token expired"}}`, AppendError(nil, JSON, 1, ErrorTokenExpired))
	f(`{"id":1,"error":{"code":100,"message":"internal server error","temporary":true}}`, AppendError(nil, JSON, 1, ErrorInternal))
	f(`{"id":5,"subscribe":{"recoverable":true,"epoch":"xcf3","publications":[{"data":{"n":9},"offset":9},{"data":{"n":10},"offset":10}],"recovered":true,"offset":8,"positioned":true,"was_recovering":true}}`,
		AppendReply(nil, JSON, 5, &SubscribeResult{
			Recoverable: true, Positioned: true, Epoch: "xcf3", Offset: 8, Recovered: true, WasRecovering: true,
			Publications: []*Publication{{Data: []byte(`{"n":9}`), Offset: 9}, {Data: []byte(`{"n":10}`), Offset: 10}},
		}))
	f(`{"id":6,"publish":{}}`, AppendReply(nil, JSON, 6, EmptyResult{Publish}))
	f(`{"id":11,"unsubscribe":{}}`, AppendReply(nil, JSON, 11, EmptyResult{Unsubscribe}))
	info := &ClientInfo{User: "42", Client: "2c7e...", Conn: []byte(`{"name":"A"}`)}
	f(`{"push":{"channel":"news","pub":{"data":{"x":1},"info":{"user":"42","client":"2c7e...","conn_info":{"name":"A"}},"offset":11}}}`,
		AppendPush(nil, JSON, false, "news", &Publication{Data: []byte(`{"x":1}`), Offset: 11, Info: info}))
	f(`{"id":7,"presence":{"presence":{"2c7e...":{"user":"42","client":"2c7e...","conn_info":{"name":"A"}}}}}`,
		AppendReply(nil, JSON, 7, &PresenceResult{map[string]*ClientInfo{"2c7e...": info}}))
	f(`{"id":7,"presence":{"presence":{}}}`, AppendReply(nil, JSON, 7, &PresenceResult{}))
	f(`{"id":8,"presence_stats":{"num_clients":0,"num_users":0}}`, AppendReply(nil, JSON, 8, &PresenceStatsResult{}))
	f(`{"id":9,"history":{"publications":[],"epoch":"","offset":0}}`, AppendReply(nil, JSON, 9, &HistoryResult{}))
	f(`{"id":10,"rpc":{"data":{"bid":1.08}}}`, AppendReply(nil, JSON, 10, &RPCResult{[]byte(`{"bid":1.08}`)}))
	f(`{"id":10,"rpc":{}}`, AppendReply(nil, JSON, 10, &RPCResult{}))
	f(`{"id":10,"sub_refresh":{"expires":true,"ttl":9}}`, AppendReply(nil, JSON, 10, &SubRefreshResult{true, 9}))
	f(`{"push":{"channel":"news","join":{"info":{"user":"7","client":"9ab..."}}}}`, AppendPush(nil, JSON, false, "news", &Join{&ClientInfo{User: "7", Client: "9ab..."}}))
	f(`{"push":{"channel":"news","leave":{"info":{"user":"","client":""}}}}`, AppendPush(nil, JSON, false, "news", &Leave{&ClientInfo{}}))
	f(`{"push":{"channel":"news","unsubscribe":{"code":2500,"reason":"insufficient state"}}}`, AppendPush(nil, JSON, false, "news", UnsubscribedInsufficientState))
	f(`{"push":{"channel":"#42","subscribe":{"recoverable":true,"epoch":"ab","offset":3}}}`, AppendPush(nil, JSON, false, "#42", &Subscription{Recoverable: true, Epoch: "ab", Offset: 3}))
	f(`{"push":{"message":{"data":{"hello":1}}}}`, AppendPush(nil, JSON, false, "", &Message{[]byte(`{"hello":1}`)}))
	f(`{"disconnect":{"code":3005,"reason":"connection expired","reconnect":true}}`, AppendPush(nil, JSON, true, "", DisconnectedExpired))
	f(`{"connect":{"client":"c","ping":25}}`, AppendPush(nil, JSON, true, "", (&ConnectResult{Client: "c", Ping: 25}).Push()))
	f(`{"refresh":{"expires":true,"ttl":5}}`, AppendPush(nil, JSON, true, "", (&RefreshResult{Expires: true, TTL: 5}).Push()))
	f(`{"push":{"channel":"q","pub":{"data":"{\"bid\":1.08}","offset":1}}}`, AppendPush(nil, JSON, false, "q", &Publication{Data: []byte(`{"bid":1.08}`), Text: true, Offset: 1}))
	f("{\"push\":{\"channel\":\"\\\"\\\\\\u0001\\n\u00e4\ufffd\",\"pub\":{}}}", AppendPush(nil, JSON, false, "\"\\\x01\nä\xff", &Publication{}))
}

// fields reads a Protobuf message into the values of each number.
func fields(t *testing.T, b []byte) map[int][]any {
	t.Helper()
	m := map[int][]any{}
	if err := each(b, func(f field) error {
		if f.wire == wireBytes {
			m[f.num] = append(m[f.num], string(f.b))
		} else {
			m[f.num] = append(m[f.num], f.n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRepliesInProtobufHaveTheirLengthAndFields(t *testing.T) {
	body := func(b []byte, path ...int) map[int][]any {
		t.Helper()
		size, rest := int(b[0]), b[1:]
		if b[0] >= 0x80 {
			size, rest = int(b[0]&0x7f)|int(b[1])<<7, b[2:]
		}
		if size != len(rest) {
			t.Fatalf("% x: a length of %d for %d bytes", b, size, len(rest))
		}
		m := fields(t, rest)
		for _, num := range path {
			m = fields(t, []byte(m[num][0].(string)))
		}
		return m
	}
	f := func(got, want map[int][]any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	type m = map[int][]any
	one, long := uint64(1), strings.Repeat("x", 300)
	f(body(Empty(Protobuf)), m{})
	f(body(AppendError(nil, Protobuf, 7, ErrorInternal)), m{1: {uint64(7)}, 2: {"\x08\x64\x12\x15internal server error\x18\x01"}})
	f(body(AppendReply(nil, Protobuf, 6, EmptyResult{Publish})), m{1: {uint64(6)}, 8: {""}})
	f(body(AppendReply(nil, Protobuf, 6, EmptyResult{Unsubscribe})), m{1: {uint64(6)}, 7: {""}})
	connect := &ConnectResult{Client: "c", Version: "v", Expires: true, TTL: 2, Data: []byte("d"), Ping: 25, Pong: true, Session: "s", Node: "n", Time: 9, Subs: map[string]*SubscribeResult{"x": {Recovered: true}}}
	f(body(AppendReply(nil, Protobuf, 1, connect), 5), m{1: {"c"}, 2: {"v"}, 3: {one}, 4: {uint64(2)}, 5: {"d"}, 6: {"\x0a\x01x\x12\x02\x40\x01"}, 7: {uint64(25)}, 8: {one}, 9: {"s"}, 10: {"n"}, 11: {uint64(9)}})
	f(body(AppendPush(nil, Protobuf, true, "", connect.Push()), 10), m{1: {"c"}, 2: {"v"}, 3: {"d"}, 4: {"\x0a\x01x\x12\x02\x40\x01"}, 5: {one}, 6: {uint64(2)}, 7: {uint64(25)}, 8: {one}, 9: {"s"}, 10: {"n"}, 11: {uint64(9)}})
	sub := &SubscribeResult{Expires: true, TTL: 3, Recoverable: true, Epoch: "e", Recovered: true, Offset: 300, Positioned: true, Data: []byte("d"), WasRecovering: true, Delta: true, Publications: []*Publication{{Data: []byte("p")}}}
	f(body(AppendReply(nil, Protobuf, 1, sub), 6), m{1: {one}, 2: {uint64(3)}, 3: {one}, 6: {"e"}, 7: {"\x22\x01p"}, 8: {one}, 9: {uint64(300)}, 10: {one}, 11: {"d"}, 12: {one}, 13: {one}})
	pub := &Publication{Data: []byte(long), Offset: 9, Tags: map[string]string{"a": "b"}, Delta: true, Time: 5, Key: "k", Info: &ClientInfo{User: "u", Client: "c", Conn: []byte("1"), Chan: []byte("2")}}
	f(body(AppendPush(nil, Protobuf, false, "ch", pub), 4, 4), m{4: {long}, 5: {"\x0a\x01u\x12\x01c\x1a\x011\x22\x012"}, 6: {uint64(9)}, 7: {"\x0a\x01a\x12\x01b"}, 8: {one}, 9: {uint64(5)}, 11: {"k"}})
	f(body(AppendPush(nil, Protobuf, false, "ch", &Leave{&ClientInfo{User: "u"}}), 4), m{2: {"ch"}, 6: {"\x0a\x03\x0a\x01u"}})
	f(body(AppendPush(nil, Protobuf, false, "ch", &Join{&ClientInfo{}}), 4), m{2: {"ch"}, 5: {"\x0a\x00"}})
	f(body(AppendPush(nil, Protobuf, false, "ch", UnsubscribedByServer), 4, 7), m{2: {uint64(2000)}, 3: {"server unsubscribe"}})
	f(body(AppendPush(nil, Protobuf, false, "", DisconnectedShutdown), 4, 11), m{1: {uint64(3001)}, 2: {"shutdown"}, 3: {one}})
	f(body(AppendPush(nil, Protobuf, false, "ch", &Subscription{Recoverable: true, Epoch: "e", Offset: 4, Positioned: true, Data: []byte("d")}), 4, 9), m{1: {one}, 4: {"e"}, 5: {uint64(4)}, 6: {one}, 7: {"d"}})
	f(body(AppendPush(nil, Protobuf, false, "", &Message{[]byte("d")}), 4, 8), m{1: {"d"}})
	f(body(AppendPush(nil, Protobuf, true, "", (&RefreshResult{Expires: true, TTL: 5}).Push()), 12), m{1: {one}, 2: {uint64(5)}})
	f(body(AppendReply(nil, Protobuf, 1, &HistoryResult{Publications: []*Publication{{Offset: 1}}, Position: Position{2, "e"}}), 11), m{1: {"\x30\x01"}, 2: {"e"}, 3: {uint64(2)}})
	f(body(AppendReply(nil, Protobuf, 1, &PresenceResult{map[string]*ClientInfo{"c": {User: "u"}}}), 9), m{1: {"\x0a\x01c\x12\x03\x0a\x01u"}})
	f(body(AppendReply(nil, Protobuf, 1, &PresenceStatsResult{1, 2}), 10), m{1: {one}, 2: {uint64(2)}})
	f(body(AppendReply(nil, Protobuf, 1, &RPCResult{[]byte("d")}), 13), m{1: {"d"}})
	f(body(AppendReply(nil, Protobuf, 1, &RefreshResult{true, 4}), 14), m{3: {one}, 4: {uint64(4)}})
	f(body(AppendReply(nil, Protobuf, 1, &SubRefreshResult{true, 4}), 15), m{1: {one}, 2: {uint64(4)}})
}

func FuzzCommand(f *testing.F) {
	for _, c := range samples() {
		f.Add(byte(JSON), AppendCommand(nil, JSON, &c))
		f.Add(byte(Protobuf), AppendCommand(nil, Protobuf, &c))
	}
	f.Add(byte(JSON), []byte(`{"id":1,"connect":{}}`+"\n"+`{}`))
	f.Fuzz(func(t *testing.T, enc byte, b []byte) {
		e := Encoding(enc & 1)
		for len(b) > 0 {
			var c Command
			rest, err := Next(b, e, &c)
			if err != nil {
				if !errors.Is(err, ErrMalformed) {
					t.Fatalf("%q: %v", b, err)
				}
				return
			}
			if len(rest) >= len(b) {
				t.Fatalf("%q: nothing was read", b)
			}
			roundTrip(t, e, &c)
			b = rest
		}
	})
}

// roundTrip writes c and reads it again.
func roundTrip(t *testing.T, e Encoding, c *Command) {
	t.Helper()
	written := AppendCommand(nil, e, c)
	var again Command
	rest, err := Next(written, e, &again)
	if err != nil || len(rest) > 0 {
		t.Fatalf("%q: %v, %d bytes left", written, err, len(rest))
	}
	if e == JSON { // line breaks within are not kept
		for _, d := range []*[]byte{&c.Sub.Data, &again.Sub.Data} {
			*d = AppendRaw(nil, *d)
		}
		if c.Connect != nil {
			c.Connect.Data, again.Connect.Data = AppendRaw(nil, c.Connect.Data), AppendRaw(nil, again.Connect.Data)
			for i := range c.Connect.Subs {
				c.Connect.Subs[i].Data, again.Connect.Subs[i].Data = AppendRaw(nil, c.Connect.Subs[i].Data), AppendRaw(nil, again.Connect.Subs[i].Data)
			}
		}
	}
	if got := AppendCommand(nil, e, &again); !bytes.Equal(got, written) {
		t.Fatalf("got  %q\nwant %q", got, written)
	}
	if e == Protobuf && !reflect.DeepEqual(&again, c) && c.Connect == nil {
		t.Fatalf("got  %+v\nwant %+v", again, *c)
	}
}

func samples() []Command {
	filter := &Filter{Op: "and", Nodes: []*Filter{{Key: "a", Cmp: "in", Vals: []string{"x", ""}}, {Op: "not", Nodes: []*Filter{{Key: "b", Cmp: "eq", Val: "1"}}}}}
	sub := SubscribeRequest{Channel: "news", Token: "t", Data: []byte(`{"a":1}`), Recover: true, Epoch: "e", Offset: 1 << 60, Positioned: true, Recoverable: true, JoinLeave: true, Delta: "fossil", Filter: filter, Flag: 3, Type: 1}
	return []Command{
		{}, {ID: 1, Kind: Connect, Connect: &ConnectRequest{Token: "t", Data: []byte("1"), Subs: []SubscribeRequest{sub}, Name: "n", Version: "v", Headers: map[string]string{"a": "b"}, Flag: 1}},
		{ID: 2, Kind: Subscribe, Sub: sub},
		{ID: 3, Kind: Unsubscribe, Sub: SubscribeRequest{Channel: "c"}},
		{ID: 4, Kind: Publish, Sub: SubscribeRequest{Channel: "c", Data: []byte(`"x"`)}, Type: 1},
		{ID: 5, Kind: Presence, Sub: SubscribeRequest{Channel: "c"}},
		{ID: 6, Kind: PresenceStats, Sub: SubscribeRequest{Channel: "c"}},
		{ID: 7, Kind: History, Sub: SubscribeRequest{Channel: "c"}, Limit: -1, HasSince: true, Since: Position{7, "e"}, Reverse: true},
		{ID: 8, Kind: Ping},
		{Kind: Send, Sub: SubscribeRequest{Data: []byte("[]")}},
		{ID: 9, Kind: RPC, Method: "m", Sub: SubscribeRequest{Data: []byte("null")}},
		{ID: 10, Kind: Refresh, Sub: SubscribeRequest{Token: "t"}},
		{ID: 11, Kind: SubRefresh, Sub: SubscribeRequest{Channel: "c", Token: "t"}, Type: 2},
	}
}

func TestCommandsComeThroughInBothEncodings(t *testing.T) {
	for _, c := range samples() {
		for _, e := range []Encoding{JSON, Protobuf} {
			if e == JSON && c.Kind == RPC {
				c.Sub.Data = []byte("{}") // null is nothing there
			}
			b := AppendCommand(nil, e, &c)
			if got := decode(t, e, b); len(got) != 1 || !reflect.DeepEqual(got[0], c) {
				t.Errorf("%v %s:\ngot  %+v\nwant %+v", e, b, got, c)
			}
		}
	}
}

func TestFilters(t *testing.T) {
	f := func(text string, tags map[string]string, want bool) {
		t.Helper()
		var c Command
		if _, err := Next([]byte(`{"id":1,"subscribe":{"tf":`+text+`}}`), JSON, &c); err != nil {
			t.Fatal(err)
		}
		if err := c.Sub.Filter.Check(); err != nil {
			t.Fatal(err)
		}
		if got := c.Sub.Filter.Match(tags); got != want {
			t.Errorf("%s of %v: %v", text, tags, got)
		}
	}
	en := map[string]string{"lang": "en", "n": "7", "word": "hello"}
	f(`{"key":"lang","cmp":"eq","val":"en"}`, en, true)
	f(`{"key":"lang","cmp":"eq","val":"de"}`, en, false)
	f(`{"key":"none","cmp":"eq","val":""}`, en, false)
	f(`{"key":"none","cmp":"neq","val":"x"}`, en, true)
	f(`{"key":"lang","cmp":"neq","val":"en"}`, en, false)
	f(`{"key":"lang","cmp":"in","vals":["de","en"]}`, en, true)
	f(`{"key":"lang","cmp":"nin","vals":["de","en"]}`, en, false)
	f(`{"key":"none","cmp":"nin","vals":["de"]}`, nil, true)
	f(`{"key":"lang","cmp":"ex"}`, en, true)
	f(`{"key":"lang","cmp":"nex"}`, en, false)
	f(`{"key":"word","cmp":"sw","val":"he"}`, en, true)
	f(`{"key":"word","cmp":"ew","val":"lo"}`, en, true)
	f(`{"key":"word","cmp":"ct","val":"ll"}`, en, true)
	f(`{"key":"n","cmp":"lt","val":"7.5"}`, en, true)
	f(`{"key":"n","cmp":"lte","val":"7"}`, en, true)
	f(`{"key":"n","cmp":"gt","val":"7"}`, en, false)
	f(`{"key":"n","cmp":"gte","val":"10"}`, en, false) // as numbers, not as text
	f(`{"key":"word","cmp":"gte","val":"10"}`, en, false)
	f(`{"op":"or","nodes":[{"key":"n","cmp":"eq","val":"8"},{"op":"not","nodes":[{"key":"lang","cmp":"eq","val":"de"}]}]}`, en, true)
	f(`{"op":"and","nodes":[{"key":"n","cmp":"eq","val":"7"},{"key":"lang","cmp":"eq","val":"de"}]}`, en, false)
	for _, bad := range []*Filter{{}, {Op: "and"}, {Op: "not"}, {Op: "x"}, {Key: "a"}, {Key: "a", Cmp: "in"}, {Key: "a", Cmp: "lt", Val: "x"}, {Op: "or", Nodes: []*Filter{{}}}} {
		if bad.Check() == nil {
			t.Errorf("%+v passes", *bad)
		}
	}
}

func TestEmulationComesThrough(t *testing.T) {
	r := &Emulation{Node: "n", Session: "s", Data: []byte(`{"id":2}` + "\n{}")}
	for _, e := range []Encoding{JSON, Protobuf} {
		got, err := ParseEmulation(r.AppendTo(nil, e), e)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%v: %+v, %v", e, got, err)
		}
	}
	for _, bad := range []string{"", "[]", "{} {}", `{"data":"`} {
		if _, err := ParseEmulation([]byte(bad), JSON); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

func FuzzEmulation(f *testing.F) {
	f.Add(byte(0), []byte(`{"session":"S","node":"N","data":"{\"id\":2}"}`))
	f.Add(byte(1), (&Emulation{"n", "s", []byte("x")}).AppendTo(nil, Protobuf))
	f.Fuzz(func(t *testing.T, enc byte, b []byte) {
		e := Encoding(enc & 1)
		r, err := ParseEmulation(b, e)
		if err != nil {
			return
		}
		again, err := ParseEmulation(r.AppendTo(nil, e), e)
		if err != nil || !bytes.Equal(again.Data, r.Data) && len(r.Data) > 0 || again.Node != r.Node || again.Session != r.Session {
			t.Fatalf("%q: %+v, %v, want %+v", b, again, err, r)
		}
	})
}

// Whatever is embedded, a reply is one line of JSON.
func FuzzPublication(f *testing.F) {
	f.Add([]byte(`{"a":1}`), "ch", []byte(`{"user":"1","client":"2","conn_info":{}}`))
	f.Add([]byte("\"\u2028\""), "\x00\xff", []byte("null"))
	f.Fuzz(func(t *testing.T, data []byte, channel string, info []byte) {
		p := &Publication{Data: data, Offset: 1, Info: ParseInfo(info), Text: !Valid(data)}
		if len(info) > 0 && !Valid(info) {
			p.Info = nil
		}
		b := AppendPush(nil, JSON, false, channel, p)
		if !json.Valid(b) || bytes.ContainsAny(b, "\r\n") {
			t.Fatalf("%q", b)
		}
		size := len(AppendPush(nil, Protobuf, false, channel, p))
		if size == 0 {
			t.Fatal("nothing")
		}
	})
}

func TestDisconnectionsSayWhetherToComeBack(t *testing.T) {
	f := func(code uint32, want bool) {
		t.Helper()
		if got := (Disconnection{Code: code}).Reconnects(); got != want {
			t.Errorf("%d: %v", code, got)
		}
	}
	f(3000, true)
	f(3499, true)
	f(3500, false)
	f(3999, false)
	f(4000, true)
	f(4499, true)
	f(4500, false)
	f(4999, false)
}
