package redact

import "testing"

func TestEndpointsShowTheirHost(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		if got := Endpoint(s); got != want {
			t.Errorf("%s is shown as %s, want %s", s, got, want)
		}
	}
	f("https://hooks.example.com/services/T000/B000/XXXX", "https://hooks.example.com/"+Mark)
	f("https://hooks.example.com:8443/?key=1", "https://hooks.example.com:8443/"+Mark)
	f("https://me:secret@hooks.example.com", "https://hooks.example.com/"+Mark)
	f("https://hooks.example.com/#secret", "https://hooks.example.com/"+Mark)
	f("https://hooks.example.com/", "https://hooks.example.com/")
	f("grpc://127.0.0.1:9000", "grpc://127.0.0.1:9000")
	f("services/T000", Mark)
	f("https://h:x/services/T000", Mark)
	f("", "")
}
