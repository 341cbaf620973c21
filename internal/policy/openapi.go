package policy

import (
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

var _ = openapi3.NewLoader
var _ = openapi3filter.ValidateRequest
var _ = gorillamux.NewRouter
