package admin

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
)

// What has no JSON is a fault of the server's, not half an answer with status 200.
func TestAnAnswerWithoutJSONIsAnError(t *testing.T) {
	f := func(v any, status int) {
		t.Helper()
		w := httptest.NewRecorder()
		writeJSON(w, http.StatusOK, v)
		if w.Code != status || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%v: status %d, body %q, want status %d and JSON", v, w.Code, w.Body, status)
		}
	}
	f(map[string]float64{"rate": 1}, http.StatusOK)
	f(map[string]float64{"rate": math.NaN()}, http.StatusInternalServerError)
}
