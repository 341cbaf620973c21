package policy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

// A Validator validates against an OpenAPI 3 document. It allocates and may take
// long: it runs on a goroutine, never on a loop. Any goroutine.
//
// Paths are taken without the scheme and host of the document's servers, with
// their base path. Security requirements are not looked at: they are the route's auth.
// Nothing is filled in: what was validated is what continues.
type Validator struct {
	router  routers.Router
	sum     [sha256.Size]byte // of the document's file
	maxBody int64
	skip    bool // requests are not validated
	answers bool // responses are validated
	options openapi3filter.Options
}

// A ValidationError is what a request or response has wrong.
type ValidationError struct {
	Status  int    // 400, 404, 405, 415 or 422; 502 for a response
	Message string // what is wrong, safe to show: it never quotes a value
	Pointer string // what it is about: "query parameter limit", "body /items/0/price"; may be empty
}

// Error returns pointer and message.
func (e *ValidationError) Error() string {
	if e.Pointer == "" {
		return e.Message
	}
	return e.Pointer + ": " + e.Message
}

func newValidator(cfg OpenAPI) (*Validator, error) {
	text, err := os.ReadFile(cfg.File)
	if err != nil {
		return nil, err
	}
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	loader.ReadFromURIFunc = func(_ *openapi3.Loader, u *url.URL) ([]byte, error) {
		if u.Scheme != "" && u.Scheme != "file" || u.Host != "" {
			return nil, fmt.Errorf("%s: only files are referred to, nothing is fetched", u)
		}
		return os.ReadFile(u.Path)
	}
	doc, err := loader.LoadFromFile(cfg.File)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	if err := basePaths(doc); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	rt, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.File, err)
	}
	return &Validator{
		router: rt, sum: sha256.Sum256(text), maxBody: cfg.MaxBody, skip: !cfg.ValidateRequests.On(), answers: cfg.ValidateResponses,
		options: openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, SkipSettingDefaults: true, IncludeResponseStatus: true,
		},
	}, nil
}

// basePaths leaves only the paths of the document's servers: what host a gateway
// is reached by is not the document's to say.
func basePaths(doc *openapi3.T) error {
	var bases []string
	for _, s := range doc.Servers {
		text := s.URL
		for name, v := range s.Variables {
			text = strings.ReplaceAll(text, "{"+name+"}", v.Default)
		}
		u, err := url.Parse(text)
		if err != nil {
			return fmt.Errorf("servers: %w", err)
		}
		bases = append(bases, strings.TrimSuffix(u.Path, "/"))
	}
	doc.Servers = nil
	for _, b := range bases {
		if b == "" {
			doc.Servers = nil
			break
		}
		doc.Servers = append(doc.Servers, &openapi3.Server{URL: b})
	}
	for _, item := range doc.Paths.Map() {
		item.Servers = nil
		for _, op := range item.Operations() {
			op.Servers = nil
		}
	}
	return nil
}

// MaxBody bounds the bodies it is to be given. Of a longer request Admit knows by
// its length, the front when more comes: 413. A longer response passes unseen.
func (v *Validator) MaxBody() int64 { return v.maxBody }

// Requests reports whether requests are validated.
func (v *Validator) Requests() bool { return !v.skip }

// Responses reports whether responses are validated.
func (v *Validator) Responses() bool { return v.answers }

// Request validates a request with its whole body. path is percent-encoded, as
// the client's side has it (Exchange.NormalPath). The error is a *ValidationError.
func (v *Validator) Request(ctx context.Context, method, path, query string, header http.Header, body []byte) (err error) {
	defer broken(&err, 500)
	in, err := v.input(method, path, query, header, body)
	if err != nil {
		return err
	}
	if err := oneReading(in.Route, in.Request.URL.Query(), header, body); err != nil {
		return err
	}
	if err := openapi3filter.ValidateRequest(ctx, in); err != nil {
		return requestError(err)
	}
	return nil
}

// Response validates the response to a request. The error is a *ValidationError
// with status 502.
func (v *Validator) Response(ctx context.Context, method, path, query string, requestHeader http.Header, status int, header http.Header, body []byte) (err error) {
	defer broken(&err, 502)
	in, err := v.input(method, path, query, requestHeader, nil)
	if err != nil {
		return err
	}
	err = openapi3filter.ValidateResponse(ctx, &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Options: &v.options,
	})
	if err == nil {
		return nil
	}
	out := &ValidationError{Status: 502, Message: "the upstream's answer is not what its OpenAPI document says"}
	if e, ok := errors.AsType[*openapi3filter.ResponseError](err); ok {
		out.Message += ": " + e.Reason
	}
	if e, ok := errors.AsType[*openapi3.SchemaError](err); ok {
		out.Message, out.Pointer = out.Message+": "+e.Reason, "body "+pointer(e)
	}
	return out
}

// broken turns a panic of the library into an error: it runs on a goroutine, where
// it would end the process.
func broken(err *error, status int) {
	if p := recover(); p != nil {
		*err = &ValidationError{Status: status, Message: "it could not be validated"}
	}
}

func (v *Validator) input(method, path, query string, header http.Header, body []byte) (*openapi3filter.RequestValidationInput, error) {
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return nil, &ValidationError{Status: 400, Message: "bad percent-encoding in the path"}
	}
	req := &http.Request{
		Method: method, URL: &url.URL{Path: decoded, RawPath: path, RawQuery: query}, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	route, params, err := v.router.FindRoute(req)
	switch {
	case errors.Is(err, routers.ErrMethodNotAllowed):
		return nil, &ValidationError{Status: 405, Message: "the OpenAPI document has no such method for this path"}
	case err != nil:
		return nil, &ValidationError{Status: 404, Message: "the OpenAPI document has no such path"}
	}
	for name, value := range params { // the router gives them as they are in the path
		if params[name], err = url.PathUnescape(value); err != nil {
			return nil, &ValidationError{Status: 400, Message: "bad percent-encoding in the path"}
		}
	}
	if _, err := url.ParseQuery(query); err != nil {
		return nil, &ValidationError{Status: 400, Message: "bad query"}
	}
	return &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route, Options: &v.options}, nil
}

// requestError puts the library's finding in a status and words without values.
func requestError(err error) *ValidationError {
	out := &ValidationError{Status: 400, Message: "the request does not match the OpenAPI document"}
	e, ok := errors.AsType[*openapi3filter.RequestError](err)
	if !ok {
		return out
	}
	schema, hasSchema := errors.AsType[*openapi3.SchemaError](err)
	switch {
	case e.Parameter != nil:
		out.Pointer = e.Parameter.In + " parameter " + e.Parameter.Name
		out.Message = cmpOr(e.Reason, "does not match its schema")
		if hasSchema {
			out.Message = schema.Reason
		} else if errors.Is(err, openapi3filter.ErrInvalidRequired) {
			out.Message = "is required"
		}
	case hasSchema:
		out.Status, out.Pointer, out.Message = 422, "body "+pointer(schema), schema.Reason
	case strings.Contains(e.Reason, "header Content-Type has unexpected value"):
		out.Status, out.Pointer, out.Message = 415, "body", "the OpenAPI document has no such Content-Type here"
	case errors.Is(err, openapi3filter.ErrInvalidRequired):
		out.Pointer, out.Message = "body", "is required"
	default:
		out.Pointer, out.Message = "body", "cannot be read as its Content-Type says"
	}
	return out
}

func cmpOr(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// pointer returns the place of a finding as a JSON pointer (RFC 6901).
func pointer(e *openapi3.SchemaError) string {
	var b strings.Builder
	for _, p := range e.JSONPointer() {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(p))
	}
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}
