package demo

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

func page(t *testing.T) map[string]File {
	t.Helper()
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// What a page loads is in its HTML, its modules' imports and its fetches, beside the
// page: the server may have a prefix in front of all.
var loads = regexp.MustCompile(`(?:href|src)="([^"#][^"]*)"|from "([^"]+)"|"(data/[^"]+)"`)

func TestPageLoadsNothingButItsFiles(t *testing.T) {
	files := page(t)
	used := map[string]bool{"/": true}
	for path, f := range files {
		if path == "/data/demo.json" || path == "/data/map.json" {
			continue
		}
		for _, m := range loads.FindAllStringSubmatch(string(f.Body), -1) {
			target := "/" + strings.TrimPrefix(m[1]+m[2]+m[3], "./")
			used[target] = true
			if _, ok := files[target]; !ok {
				t.Errorf("%s loads %s, which is not there", path, target)
			}
		}
		text := strings.ReplaceAll(string(f.Body), "http://www.w3.org/2000/svg", "")
		if strings.Contains(text, "http://") || strings.Contains(text, "https://") {
			t.Errorf("%s names another origin", path)
		}
	}
	for path := range files {
		if !used[path] {
			t.Errorf("nothing loads %s", path)
		}
	}
}

func TestPageHasNothingInlineThatItsPolicyForbids(t *testing.T) {
	html := string(page(t)["/"].Body)
	for _, bad := range []string{`<style`, `style="`, `<script>`, `javascript:`, `data:`} {
		if strings.Contains(html, bad) {
			t.Errorf("index.html has %s", bad)
		}
	}
	if on := regexp.MustCompile(`\son[a-z]+="`).FindString(html); on != "" {
		t.Errorf("index.html has a handler inline: %s", on)
	}
}

func TestScriptsFindTheElementsTheyName(t *testing.T) {
	files := page(t)
	html := string(files["/"].Body)
	for _, m := range regexp.MustCompile(`\$\("([^"]+)"\)`).FindAllStringSubmatch(string(files["/app.js"].Body), -1) {
		if !strings.Contains(html, ` id="`+m[1]+`"`) {
			t.Errorf("app.js names #%s, which is not in index.html", m[1])
		}
	}
}

func TestPageKnowsEveryAirportAndChannel(t *testing.T) {
	var about struct {
		Channels []string
		Commands []Command
		Airports map[string][4]any
	}
	if err := json.Unmarshal(page(t)["/data/demo.json"].Body, &about); err != nil {
		t.Fatal(err)
	}
	if len(about.Channels) != len(Channels()) || len(about.Airports) != len(load(t).Airports) || len(about.Commands) == 0 {
		t.Errorf("%d channels, %d airports, %d commands", len(about.Channels), len(about.Airports), len(about.Commands))
	}
}

// The curl lines are run by a shell, as a reader would run them.
func TestPrintedCurlLinesShowMessages(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("curl is needed to test the lines that show its use")
	}
	s := serve(t)
	for _, c := range Channels() {
		body := strings.NewReader(`{"channel":"` + c + `","data":{"channel":"` + c + `"}}`)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/api/publish", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", s.key)
		w := httptest.NewRecorder()
		s.publish(w, req)
	}
	for _, c := range Commands(s.URL + "/") {
		if !strings.HasPrefix(c.Line, "curl ") {
			continue
		}
		// What is retained is enough to see that the line is right; it ends by itself.
		line := strings.Replace(c.Line, "curl ", curl+" -s -S --max-time 1 -H 'Last-Event-ID: 0' ", 1)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 28 { // its time was over
			t.Errorf("%s: %v\n%s", c.Line, err, out)
		}
		for _, m := range regexp.MustCompile(`channel=([a-z]+:[A-Za-z0-9]+)`).FindAllStringSubmatch(c.Line, -1) {
			if !strings.Contains(string(out), m[1]) {
				t.Errorf("%s shows nothing of %s:\n%s", c.Line, m[1], out)
			}
		}
	}
}
