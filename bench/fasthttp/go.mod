module github.com/weir-gateway/weir/bench/fasthttp

go 1.26.0

replace github.com/weir-gateway/weir => ../..

require (
	github.com/valyala/fasthttp v1.78.0
	github.com/weir-gateway/weir v0.0.0
)

require (
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/molecule-man/go-brrr v1.3.1 // indirect
	github.com/valyala/bytebufferpool v1.0.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)
