// Package stdhttp is the front on net/http: HTTP/2, and systems without event loops.
package stdhttp
