module github.com/weir-gateway/weir/docs/site

go 1.26.0

require (
	github.com/yuin/goldmark v1.8.4
	golang.org/x/net v0.62.0
)
