package demo

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
)

//go:embed web
var web embed.FS

// ContentSecurityPolicy is what the page can live with: nothing but itself.
const ContentSecurityPolicy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// A File is one answer of the static routes.
type File struct {
	ContentType string
	Body        []byte
}

// contentTypes of the files in web/; another ending is a mistake of ours.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".json": "application/json",
}

// Files returns the page by request path: "/" is the page itself, which loads
// the others and then opens /sse on the same origin.
func Files() (map[string]File, error) {
	files := map[string]File{}
	entries, err := fs.ReadDir(web, "web")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		body, err := web.ReadFile("web/" + e.Name())
		if err != nil {
			return nil, err
		}
		kind, ok := contentTypes[path.Ext(e.Name())]
		if !ok {
			return nil, fmt.Errorf("web/%s: no content type for %q", e.Name(), path.Ext(e.Name()))
		}
		files["/"+e.Name()] = File{kind, body}
	}
	files["/"] = files["/index.html"]
	delete(files, "/index.html")
	files["/data/map.json"] = File{contentTypes[".json"], mapJSON}
	about, err := describe()
	if err != nil {
		return nil, err
	}
	files["/data/demo.json"] = File{contentTypes[".json"], about}
	return files, nil
}

// describe returns what the page must know: channels, commands, airports.
func describe() ([]byte, error) {
	w, err := Load()
	if err != nil {
		return nil, err
	}
	airports := map[string][4]any{}
	for iata, a := range w.Airports {
		airports[iata] = [4]any{a.Lat, a.Lon, a.City, a.Name}
	}
	return json.Marshal(map[string]any{
		"channels": Channels(),
		"commands": Commands("{origin}"),
		"airports": airports,
	})
}
