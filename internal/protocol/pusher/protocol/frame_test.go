package protocol

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseFrame(t *testing.T) {
	f := func(in, event, channel, data string, ok bool) {
		t.Helper()
		got, err := ParseFrame([]byte(in))
		if (err == nil) != ok || got.Event != event || got.Channel != channel || string(got.Data) != data {
			t.Errorf("ParseFrame(%s) = %+v (%s), %v", in, got, got.Data, err)
		}
	}
	f(`{"event":"pusher:ping","data":{}}`, "pusher:ping", "", "{}", true)
	f(`{"event":"pusher:ping"}`, "pusher:ping", "", "", true)
	f(`{"event":"client-a","channel":"private-b","data":"x"}`, "client-a", "private-b", `"x"`, true)
	f(`{"event":"client-a","channel":null,"data":null}`, "client-a", "", `null`, true)
	f(`{"event":""}`, "", "", "", false)
	f(`{"event":1}`, "", "", "", false)
	f(`{}`, "", "", "", false)
	f(`[]`, "", "", "", false)
	f(``, "", "", "", false)
	f(`{"event":"a"} x`, "", "", "", false)
}

func TestFieldsAreReadFromObjectsAndStrings(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		var s Subscribe
		if err := Fields([]byte(in), &s); err != nil || s.Channel != want {
			t.Errorf("Fields(%s) = %+v, %v", in, s, err)
		}
	}
	f(`{"channel":"a"}`, "a")
	f(` "{\"channel\":\"a\"}"`, "a")
	if Fields(nil, &Subscribe{}) == nil || Fields([]byte(`"x"`), &Subscribe{}) == nil || Fields([]byte(`{"channel":1}`), &Subscribe{}) == nil {
		t.Error("Fields accepts anything")
	}
}

func TestTextIsWhatAReceiverGets(t *testing.T) {
	f := func(in, want string, isJSON bool) {
		t.Helper()
		if got, j := Text([]byte(in)); string(got) != want || j != isJSON {
			t.Errorf("Text(%s) = %s, %v", in, got, j)
		}
	}
	f(`{"a": 1}`, `{"a": 1}`, true)
	f(`"{\"a\": 1}"`, `{"a": 1}`, true)
	f(`"hello"`, `hello`, false)
	f(`"12"`, `12`, true)
	f(`12`, `12`, true)
	f(`""`, ``, false)
	f(``, `null`, true)
	f(`null`, `null`, true)
}

func TestMembers(t *testing.T) {
	f := func(in, id, info string, ok bool) {
		t.Helper()
		m, err := ParseMember(in)
		if (err == nil) != ok || m.ID != id || string(m.Info) != info {
			t.Errorf("ParseMember(%s) = %+v, %v", in, m, err)
		}
	}
	f(`{"user_id":"1","user_info":{"name":"A"}}`, "1", `{"name":"A"}`, true)
	f(`{"user_id":17}`, "17", "", true)
	f(`{"user_id":1.5e3}`, "1.5e3", "", true)
	f(`{"user_id":""}`, "", "", false)
	f(`{"user_id":null}`, "", "", false)
	f(`{"user_id":true}`, "", "", false)
	f(`{}`, "", "", false)
	f(`x`, "", "", false)
	u, err := ParseUser(`{"id":"7","user_info":{},"watchlist":["a","b"]}`)
	if err != nil || u.ID != "7" || len(u.Watchlist) != 2 {
		t.Errorf("ParseUser = %+v, %v", u, err)
	}
}

func TestServerFramesAreTheProtocols(t *testing.T) {
	f := func(got []byte, want string) {
		t.Helper()
		if string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(AppendEstablished(nil, "1.2", 120), `{"event":"pusher:connection_established","data":"{\"socket_id\":\"1.2\",\"activity_timeout\":120}"}`)
	f(AppendEvent(nil, "e", "c", []byte(`{"a":"b"}`), "u"), `{"event":"e","channel":"c","data":"{\"a\":\"b\"}","user_id":"u"}`)
	f(AppendEvent(nil, EventCacheMiss, "cache-a", nil, ""), `{"event":"pusher:cache_miss","channel":"cache-a"}`)
	f(AppendError(nil, 4301, "", `no "x"`), `{"event":"pusher:error","data":{"code":4301,"message":"no \"x\""}}`)
	f(AppendSubscriptionError(nil, "private-a", "AuthError", "no", 401),
		`{"event":"pusher:subscription_error","channel":"private-a","data":{"type":"AuthError","error":"no","status":401}}`)
	f(AppendMembers(nil, []Member{{"1", json.RawMessage(`{"n":1}`)}, {"2", nil}}), `{"presence":{"ids":["1","2"],"hash":{"1":{"n":1},"2":null},"count":2}}`)
	f(AppendMembers(nil, nil), `{"presence":{"ids":[],"hash":{},"count":0}}`)
	f(AppendMember(nil, Member{"1", nil}, true), `{"user_id":"1"}`)
	f(AppendMember(nil, Member{"1", json.RawMessage(`2`)}, false), `{"user_id":"1","user_info":2}`)
	f(AppendWatchlist(nil, "online", []string{"a", "b"}), `{"events":[{"name":"online","user_ids":["a","b"]}]}`)
	f(AppendCount(nil, 3), `{"subscription_count":3}`)
}

func FuzzParseFrame(f *testing.F) {
	for _, s := range []string{`{"event":"pusher:subscribe","data":{"channel":"private-a","auth":"k:s","channel_data":"{\"user_id\":\"1\"}"}}`,
		`{"event":"client-x","channel":"presence-a","data":"\u0000\ud800"}`, `{"event":"pusher:signin","data":"{\"user_data\":\"{}\"}"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := ParseFrame(b)
		if err != nil {
			return
		}
		text, isJSON := Text(fr.Data)
		if isJSON != json.Valid(text) {
			t.Fatalf("Text(%s) = %s says JSON %v", fr.Data, text, isJSON)
		}
		out := AppendEvent(nil, fr.Event, fr.Channel, text, "u")
		var back struct{ Event, Channel, Data string }
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if back.Event != fr.Event || back.Channel != fr.Channel || back.Data != strings.ToValidUTF8(string(text), "\ufffd") && utf8.Valid(text) {
			t.Fatalf("%s became %s", b, out)
		}
		var s Subscribe
		if Fields(fr.Data, &s) == nil {
			_, _ = ParseMember(s.ChannelData)
		}
		var u Signin
		if Fields(fr.Data, &u) == nil {
			_, _ = ParseUser(u.UserData)
		}
	})
}
