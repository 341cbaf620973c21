package e2e

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

// trusting is the flag by which Chromium takes the certificate in file without an
// authority.
func trusting(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s has no certificate", file)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "--ignore-certificate-errors-spki-list=" + base64.StdEncoding.EncodeToString(sum[:])
}

// pageScript follows a channel by twenty EventSources, more than HTTP/1.1 would let a
// page have, by a WebSocket, and by a body that it reads itself, and publishes by fetch.
const pageScript = `
	window.report = { events: [], socket: [], fetched: [], opened: 0 };
	const sources = Array.from({ length: 20 }, () => {
		const source = new EventSource('/sse?channel=page');
		source.onopen = () => { report.opened++; };
		source.onmessage = (e) => { report.events.push(e.data); };
		return source;
	});
	window.open_ = () => {
		const socket = new WebSocket('wss://' + location.host + '/ws?channel=page&hello=1');
		socket.onmessage = (e) => {
			const frame = JSON.parse(e.data);
			if (frame.type === 'subscribed') report.opened++;
			else if (!frame.type || frame.type === 'message') report.socket.push(JSON.stringify(frame.data));
		};
		socket.onclose = (e) => { report.closed = e.code; };
	};
	(async () => {
		const response = await fetch('/sse?channel=page');
		report.opened++;
		let text = '';
		for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
			text += piece;
			report.fetched = [...text.matchAll(/^data: (.*)\n\n/gm)].map((m) => m[1]);
		}
	})();
	window.publish = async (key) => {
		for (let n = 0; n < 3; n++) {
			const response = await fetch('/api/publish', { method: 'POST', headers: { 'X-API-Key': key, 'Content-Type': 'application/json' },
				body: JSON.stringify({ channel: 'page', data: { n } }) });
			if (!response.ok) throw new Error('publish: ' + response.status);
		}
	};
	window.transfer = async (alphabet, size) => {
		const sum = async (bytes) => [...new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))].map((b) => b.toString(16).padStart(2, '0')).join('');
		const body = new TextEncoder().encode(alphabet.repeat(size / alphabet.length));
		const up = await (await fetch('/backend/upload', { method: 'POST', body })).json();
		report.uploaded = up.bytes + ' ' + up.sum;
		const down = await (await fetch('/backend/download?n=' + size)).arrayBuffer();
		report.downloaded = down.byteLength + ' ' + await sum(down);
		report.echoes = await Promise.all(Array.from({ length: 50 }, async (_, i) => (await fetch('/backend/echo?n=' + i)).text()));
		report.protocols = [...new Set(performance.getEntriesByType('resource').map((e) => e.nextHopProtocol))];
		report.page = performance.getEntriesByType('navigation')[0].nextHopProtocol;
	};
`

func TestChromiumOverHTTP2(t *testing.T) {
	t.Parallel()
	s := http2Server(t, true, nil)
	b := &tabs{tab: driven(t, "tabs.mjs", trusting(t, s.Authority))}
	url := "https://" + s.Public
	b.do(t, "open", map[string]string{"name": "a", "url": url + "/backend/page"}, nil)
	b.eval("a", "(() => {"+pageScript+"})()", nil)
	b.wait("a", "report.opened === 21")
	b.eval("a", "open_()", nil)
	b.wait("a", "report.opened === 22")
	b.eval("a", fmt.Sprintf("publish(%q)", judge.APIKey), nil)
	b.wait("a", "report.events.length >= 60 && report.socket.length >= 3 && report.fetched.length >= 3")
	b.eval("a", fmt.Sprintf("transfer(%q, %d)", alphabet, bodySize), nil)
	var text string
	b.eval("a", "JSON.stringify(report)", &text)
	var got struct {
		Events, Socket, Fetched, Echoes, Protocols []string
		Uploaded, Downloaded, Page                 string
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := expected()
	var events, echoes []string
	for _, e := range want["events"].([]any) {
		events = append(events, e.(string))
	}
	for _, e := range want["echoes"].([]any) {
		echoes = append(echoes, e.(string))
	}
	if !slices.Equal(got.Socket, events) || !slices.Equal(got.Fetched, events) {
		t.Errorf("the WebSocket got %q, fetch got %q, want %q", got.Socket, got.Fetched, events)
	}
	for _, e := range events {
		if n := count(got.Events, e); n != 20 {
			t.Errorf("%s came to %d of 20 EventSources", e, n)
		}
	}
	if got.Uploaded != want["uploaded"] || got.Downloaded != want["downloaded"] || !slices.Equal(got.Echoes, echoes) {
		t.Errorf("uploaded %s, downloaded %s, echoes %q", got.Uploaded, got.Downloaded, got.Echoes)
	}
	if got.Page != "h2" || !slices.Equal(got.Protocols, []string{"h2"}) {
		t.Errorf("the page came by %s, the rest by %q, want h2", got.Page, got.Protocols)
	}
	// The WebSocket is a stream of the same connection too (RFC 8441).
	if c, n := s.Series("weir_http2_connections"), s.Series("weir_http2_streams"); c != 1 || n != 22 {
		t.Errorf("%v connections with %v streams are counted, want 1 with 22", c, n)
	}
}

func count(list []string, one string) (n int) {
	for _, e := range list {
		if e == one {
			n++
		}
	}
	return n
}
