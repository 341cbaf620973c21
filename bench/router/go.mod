module github.com/weir-gateway/weir/bench/router

go 1.26.0

replace github.com/weir-gateway/weir => ../..

require (
	github.com/go-chi/chi/v5 v5.5.0
	github.com/julienschmidt/httprouter v1.3.0
	github.com/weir-gateway/weir v0.0.0
)
