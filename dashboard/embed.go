package dashboard

import (
	"embed"
	"io/fs"
)

//go:embed web
var web embed.FS

// Files are the page's, with index.html at the root.
func Files() fs.FS {
	files, err := fs.Sub(web, "web")
	if err != nil {
		panic("dashboard: web is embedded: " + err.Error())
	}
	return files
}
