package admin

import (
	"fmt"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Revocations is what GET /api/revocations answers.
type Revocations struct {
	Revocations []auth.Revocation `json:"revocations"`
}

// defaultRevocation is how long a revocation lasts if the query does not say.
const defaultRevocation = 24 * time.Hour

// revoke answers POST /api/revocations/{kind}/{name}. All that identifies what is revoked is in
// the path, which the audit log records.
func revoke(src *Sources, w http.ResponseWriter, r *http.Request) {
	now, q := time.Now(), r.URL.Query()
	v := auth.Revocation{Kind: r.PathValue("kind"), Name: r.PathValue("name"), Until: now.Add(defaultRevocation), Reason: q.Get("reason")}
	if s := q.Get("for"); s != "" {
		var d hub.Duration
		if err := d.UnmarshalText([]byte(s)); err != nil {
			writeError(w, http.StatusBadRequest, "for: "+err.Error())
			return
		}
		v.Until = now.Add(time.Duration(d))
	}
	switch s := q.Get("issued_before"); s {
	case "":
	case "now":
		v.IssuedBefore = now
	default:
		var err error
		if v.IssuedBefore, err = time.Parse(time.RFC3339, s); err != nil {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("issued_before: invalid %.40q: want now, or a time such as %s", s, time.Unix(0, 0).UTC().Format(time.RFC3339)))
			return
		}
	}
	answer(w, http.StatusOK)(src.Revoke(r.Context(), v))
}

// unrevoke answers DELETE /api/revocations/{kind}/{name}.
func unrevoke(src *Sources, w http.ResponseWriter, r *http.Request) {
	if err := src.Unrevoke(r.Context(), r.PathValue("kind"), r.PathValue("name")); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func revocations(src *Sources, w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, Revocations{src.Revocations()})
}
