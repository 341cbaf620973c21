package protocol_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/protocol/pusher/pushertest"
)

// The credentials of the vendor's worked examples.
const (
	vendorKey    = "278d425bdf160c739803"
	vendorSecret = "7ad3773142a6692b25b8"
	vendorBody   = `{"name":"foo","channels":["project-3"],"data":"{\"some\":\"data\"}"}`
)

func TestSignaturesAreThoseOfTheVendor(t *testing.T) {
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f(protocol.SignSubscription(vendorKey, vendorSecret, "1234.1234", "private-foobar", ""),
		vendorKey+":58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4")
	f(protocol.SignSubscription(vendorKey, vendorSecret, "1234.1234", "presence-foobar", `{"user_id":10,"user_info":{"name":"Mr. Channels"}}`),
		vendorKey+":31935e7d86dba64c2a90aed31fdc61869f9b22ba9d8863bba239c03ca481bc80")
	f(protocol.SignUser(vendorKey, vendorSecret, "1234.1234", `{"id":"12345"}`),
		vendorKey+":4708d583dada6a56435fb8bc611c77c359a31eebde13337c16ab43aa6de336ba")
	f(protocol.BodyMD5([]byte(vendorBody)), "ec365a775a4cd0599faeb73354201b6f")
}

func TestVerify(t *testing.T) {
	const signed = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0&body_md5=ec365a775a4cd0599faeb73354201b6f" +
		"&auth_signature=da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c"
	now := time.Unix(1353088179, 0)
	f := func(method, path, query, body string, at time.Time, want string) {
		t.Helper()
		_, err := protocol.Verify(protocol.Request{method, path, query, []byte(body)}, vendorKey, vendorSecret, at)
		if got := ""; err != nil && want != "" && strings.Contains(err.Error(), want) {
			return
		} else if err != nil {
			got = err.Error()
			t.Errorf("Verify = %q, want %q", got, want)
		} else if want != "" {
			t.Errorf("Verify accepted, want %q", want)
		}
	}
	f("POST", "/apps/3/events", signed, vendorBody, now, "")
	f("POST", "/apps/3/events", signed, vendorBody, now.Add(600*time.Second), "")
	f("POST", "/apps/3/events", signed, vendorBody, now.Add(-600*time.Second), "")
	f("POST", "/apps/3/events", signed, vendorBody, now.Add(601*time.Second), "auth_timestamp 1353088179 is 601 s away")
	f("POST", "/apps/3/events", signed, vendorBody, now.Add(-601*time.Second), "601 s away")
	f("POST", "/apps/3/events", signed, vendorBody+" ", now, "body_md5")
	f("POST", "/apps/3/events", signed, "", now, "body_md5")
	f("GET", "/apps/3/events", signed, vendorBody, now, "auth_signature")
	f("POST", "/apps/4/events", signed, vendorBody, now, "auth_signature")
	f("POST", "/apps/3/events", signed+"&info=user_count", vendorBody, now, "auth_signature")
	f("POST", "/apps/3/events", signed+"&Auth_Key=x", vendorBody, now, "twice")
	f("POST", "/apps/3/events", strings.Replace(signed, "1.0", "2.0", 1), vendorBody, now, "auth_version")
	f("POST", "/apps/3/events", strings.Replace(signed, "auth_key=2", "auth_key=3", 1), vendorBody, now, "auth_key")
	f("POST", "/apps/3/events", strings.Replace(signed, "1353088179", "soon", 1), vendorBody, now, "not a number")
	f("POST", "/apps/3/events", strings.Replace(signed, "1353088179", "-9223372036854775808", 1), vendorBody, now, "away")
	f("POST", "/apps/3/events", "auth_key=%zz", vendorBody, now, "query")
	f("POST", "/apps/3/events", "", vendorBody, now, "auth_key")
	f("POST", "/apps/3/events", strings.Replace(signed, "&auth_signature=", "&auth_signature=0", 1), vendorBody, now, "auth_signature")
}

// Libraries sign a path as it is written or as it was meant, and values as meant.
func TestVerifyReadsPathsBothWays(t *testing.T) {
	now := time.Unix(1700000000, 0)
	for _, signedPath := range []string{"/apps/1/users/a b/terminate_connections", "/apps/1/users/a%20b/terminate_connections"} {
		q := pushertest.SignedQuery(protocol.Request{Method: "POST", Path: signedPath, Query: "x=a%20b,c", Body: []byte("{}")}, "k", "s", now)
		params, err := protocol.Verify(protocol.Request{"POST", "/apps/1/users/a%20b/terminate_connections", q, []byte("{}")}, "k", "s", now)
		if err != nil || protocol.Get(params, "x") != "a b,c" {
			t.Errorf("%s: %v, %v", signedPath, params, err)
		}
	}
}

// A value must not pass for two parameters: joined for signing they would look alike.
func TestVerifyRefusesWhatReadsInTwoWays(t *testing.T) {
	now := time.Unix(1700000000, 0)
	q := pushertest.SignedQuery(protocol.Request{Method: "GET", Path: "/", Query: "a=1%26b=2"}, "k", "s", now)
	if _, err := protocol.Verify(protocol.Request{"GET", "/", q, nil}, "k", "s", now); err == nil {
		t.Error("accepted a value with & in it")
	}
}

func FuzzVerify(f *testing.F) {
	f.Add("info=user_count", "/apps/1/channels", "", int64(0))
	f.Add("filter_by_prefix=presence-&info=user_count", "/apps/1/channels", "{}", int64(-600))
	f.Add("a%20=%zz&=&&b", "/a b/ü", "x", int64(601))
	f.Fuzz(func(t *testing.T, query, path, body string, skew int64) {
		now := time.Unix(1700000000, 0)
		r := protocol.Request{"POST", path, query, []byte(body)}
		if _, err := protocol.Verify(r, "k", "s", now); err == nil {
			t.Fatal("accepted without a signature")
		}
		params, err := protocol.Params(query)
		if err != nil || protocol.Unambiguous(params) != nil {
			return
		}
		for _, p := range params {
			if strings.HasPrefix(strings.ToLower(p.Name), "auth_") || strings.EqualFold(p.Name, "body_md5") {
				return
			}
		}
		at := now.Add(time.Duration(skew%2000) * time.Second)
		r.Query = pushertest.SignedQuery(r, "k", "s", at)
		_, err = protocol.Verify(r, "k", "s", now)
		if inTime := skew%2000 >= -600 && skew%2000 <= 600; inTime != (err == nil) {
			t.Fatalf("skew %d: %v", skew%2000, err)
		}
		if err == nil {
			if _, err := protocol.Verify(r, "k", "other", now); err == nil {
				t.Fatal("accepted with another secret")
			}
		}
	})
}
