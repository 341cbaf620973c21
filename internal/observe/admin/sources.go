package admin

import (
	"fmt"
	"net/http"

	"github.com/weir-gateway/weir/internal/push/ingest"
)

// SourceList is what GET /api/sources answers.
type SourceList struct {
	Sources []ingest.State `json:"sources"`
}

func (src *Sources) sources(w http.ResponseWriter, _ *http.Request) {
	list := src.Ingest()
	if list == nil {
		list = []ingest.State{}
	}
	writeJSON(w, http.StatusOK, SourceList{list})
}

func (src *Sources) pauseSource(w http.ResponseWriter, r *http.Request) {
	paused := false
	switch action := r.PathValue("action"); action {
	case "pause":
		paused = true
	case "resume":
	default:
		writeError(w, http.StatusNotFound, fmt.Sprintf("unknown action %.40q: want pause or resume", action))
		return
	}
	answer(w, http.StatusOK)(src.PauseSource(r.PathValue("name"), paused))
}
