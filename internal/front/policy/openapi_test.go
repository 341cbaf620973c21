package policy

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const document = `openapi: 3.0.3
info: {title: orders, version: "1"}
servers: [{url: "https://api.example.com/v1"}]
paths:
  /orders/{id}:
    get:
      parameters:
        - {name: id, in: path, required: true, schema: {type: integer}}
        - {name: limit, in: query, required: true, schema: {type: integer, maximum: 10}}
      responses:
        "200": {description: ok, content: {application/json: {schema: {type: object, required: [id], properties: {id: {type: integer}}}}}}
  /orders:
    post:
      security: [{key: []}]
      requestBody:
        required: true
        content:
          application/json:
            schema:
              type: object
              required: [items]
              properties:
                items: {type: array, items: {type: object, properties: {price: {type: number, minimum: 0}}}}
                note: {type: string, default: none}
      responses: {"201": {description: made}}
components:
  securitySchemes: {key: {type: apiKey, name: X-API-Key, in: header}}
`

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRequestsAreValidatedAgainstADocument(t *testing.T) {
	s := set(t, deps(t), `{"path": "/v1/*", "cluster": "c", "openapi": {"file": "`+write(t, document)+`", "validate_responses": true, "max_body": 100}}`, `{"cluster": "c"}`)
	v := s.Routes()[0].Validator()
	if s.Routes()[1].Validator() != nil || !v.Requests() || !v.Responses() || v.MaxBody() != 100 || s.Routes()[0].MaxBody() != 100 {
		t.Errorf("%+v", v)
	}
	f := func(target, contentType, body string, status int, words string) {
		t.Helper()
		method, target, _ := strings.Cut(target, " ")
		path, query, _ := strings.Cut(target, "?")
		h := http.Header{}
		if contentType != "" {
			h.Set("Content-Type", contentType)
		}
		err := v.Request(t.Context(), method, path, query, h, []byte(body))
		e, ok := errors.AsType[*ValidationError](err)
		switch {
		case err == nil && status != 0, err != nil && (!ok || e.Status != status || !strings.Contains(e.Error(), words)):
			t.Errorf("%s %s: %v, want %d %q", target, body, err, status, words)
		case err != nil && strings.Contains(e.Error(), "s3cret"):
			t.Errorf("%s: %v quotes the value", target, err)
		}
	}
	const js = "application/json"
	f("GET /v1/orders/7?limit=3", "", "", 0, "")
	f("GET /v1/orders/%37?limit=3", "", "", 0, "")
	f("GET /v1/orders/s3cret?limit=3", "", "", 400, "path parameter id")
	f("GET /v1/orders/7?limit=11", "", "", 400, "query parameter limit: number must be at most 10")
	f("GET /v1/orders/7?limit=s3cret", "", "", 400, "query parameter limit")
	f("GET /v1/orders/7", "", "", 400, "query parameter limit: is required")
	f("GET /v1/orders/7?limit=%zz", "", "", 400, "bad query")
	f("GET /v1/other", "", "", 404, "no such path")
	f("GET /orders/7?limit=3", "", "", 404, "no such path")
	f("DELETE /v1/orders", "", "", 405, "no such method")
	f("POST /v1/orders", js, `{"items": [{"price": 1.5}]}`, 0, "")
	f("POST /v1/orders", js, `{"items": [{"price": 1}, {"price": -1}]}`, 422, "body /items/1/price: number must be at least 0")
	f("POST /v1/orders", js, `{"items": ["s3cret"]}`, 422, "body /items/0")
	f("POST /v1/orders", js, `{}`, 422, "items")
	f("POST /v1/orders", js, `{s3cret`, 400, "body: cannot be read")
	f("POST /v1/orders", js, "", 400, "body: is required")
	f("POST /v1/orders", "text/plain", "s3cret", 415, "Content-Type")
}

func TestResponsesAreValidatedAgainstADocument(t *testing.T) {
	v, err := newValidator(OpenAPI{File: write(t, document)})
	if err != nil {
		t.Fatal(err)
	}
	f := func(status int, contentType, body, words string) {
		t.Helper()
		err := v.Response(t.Context(), "GET", "/v1/orders/7", "limit=1", http.Header{}, status, http.Header{"Content-Type": {contentType}}, []byte(body))
		e, ok := errors.AsType[*ValidationError](err)
		if (err == nil) != (words == "") || err != nil && (!ok || e.Status != 502 || !strings.Contains(e.Error(), words)) {
			t.Errorf("%d %s: %v, want %q", status, body, err, words)
		}
	}
	f(200, "application/json", `{"id": 7}`, "")
	f(200, "application/json", `{"id": "x"}`, "body /id")
	f(200, "application/json", `{}`, "id")
	f(200, "text/html", `x`, "the upstream's answer")
	f(418, "application/json", `{}`, "status")
}

func TestABadDocumentNamesFileAndPlace(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		file := write(t, text)
		_, err := New(configs(t, `{"cluster": "c", "openapi": {"file": "`+file+`"}}`), deps(t))
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	f("openapi: [", "line 1")
	f("openapi: 3.0.3\ninfo: {title: x, version: y}\npaths:\n  /a:\n    get: {}\n", "/a")
	f("openapi: 3.0.3\ninfo: {title: x, version: y}\npaths:\n  /a: {$ref: 'http://127.0.0.1:1/x.yaml'}\n", "nothing is fetched")
	f("openapi: 3.0.3\ninfo: {title: x}\npaths: {}\n", "version")
}
