# Tools and what the judges need go to .cache/, which git ignores.
CACHE   := $(CURDIR)/.cache
LINT    := $(CACHE)/bin/golangci-lint-v2.15.0
FUZZTIME ?= 10s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

.PHONY: help build lab test-go test test-fresh lint fuzz bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Or every process with the race detector, each test and each server it starts, ends a second late.
export GORACE ?= atexit_sleep_ms=0

build: ## bin/weir, a static binary
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.version=$(VERSION)" -o bin/weir ./cmd/weir

lab: build ## bin/weir-lab, the tuning experiments of docs/lab, beside the bin/weir that it measures
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags "-s -w" -o bin/weir-lab ./cmd/weir-lab

test-go: ## the quick part: vet, the floors, unit tests with the race detector but for those that take many seconds, once each: make test runs all, and many again with epoll or over HTTP/2
	go vet -race ./...
	go test -short -race -vet=off -p 3 -parallel 4 -skip '(Simulated|Exhaustively)$$' $$(go list ./... | grep -vE '/test/|/archtest$$')
	go test -vet=off ./internal/testkit/archtest
	go test -vet=off -run '(Simulated|Exhaustively)$$' ./cmd/weir ./internal/app/... ./internal/front/limit ./internal/measure/capacity ./internal/measure/lab/job ./internal/proxy/upstream ./internal/testkit/history

test: ## everything: installs what the judges need, unit tests, real clients, outside suites, lint
	bash test/all.sh

test-fresh: ## everything again, in a minimal Debian root of its own (as root)
	bash test/fresh.sh

# With the settings of go vet and the tests, what these have compiled serves.
lint: $(LINT) ## golangci-lint
	CGO_ENABLED=1 GOFLAGS="$(filter-out -trimpath -tags=%,$(GOFLAGS)) -race" $(LINT) run ./...

$(LINT):
	GOBIN=$(CACHE)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(CACHE)/bin/golangci-lint $@

.PHONY: knee-coverage knee-sockets
knee-coverage: ## the table of docs/design/knee.md: hundreds of searches of simulated queues of known answer, a quarter of an hour
	go test ./internal/measure/capacity -run TestCoverageTable -coverage-table -count 1 -timeout 3h -v

KNEE_SEARCHES ?= 10

knee-sockets: ## KNEE_SEARCHES searches of an HTTP server of known law on loopback, 80 s each; on a quiet machine
	go test ./internal/measure/capacity -run TestCoverageOnSockets -coverage-sockets $(KNEE_SEARCHES) -count 1 -timeout 3h -v

FREEZE_RUNS ?= 10
FREEZE_RATES ?= 200 2000

.PHONY: test-freeze
test-freeze: ## frozen and cut-off NATS servers, the long form (as root): FREEZE_RUNS= of each, FREEZE_RATES=
	@set -e; for rate in $(FREEZE_RATES); do \
		echo "$$rate publications per second"; \
		WEIR_FREEZE_RUNS=$(FREEZE_RUNS) WEIR_FREEZE_RATE=$$rate go test ./broker/nats -run TestFrozenServerLosesNothing -count 1 -timeout 3h -v; \
	done

.PHONY: test-gm
test-gm: ## TLCP and RFC 8998 against Tongsuo, in both roles; builds it once (cargo, a C compiler)
	WEIR_TONGSUO=$$(test/tongsuo.sh) go test -tags tongsuo ./internal/net/tlsterm/gm -run TestTongsuo -count 1 -timeout 10m -v

.PHONY: test-grpc-cpp
test-grpc-cpp: ## gRPC's C++ through the gateway; builds its client once (g++, Debian's packages)
	go test -race -tags grpccpp ./test/grpc -run TestInteropOfCPP -count 1 -timeout 10m -v

.PHONY: test-gateway-api
test-gateway-api: ## the controller of the Gateway API, a module of its own: golden cases, and a Weir that it configures
	cd integrations/gateway-api && go vet ./... && go test -race ./... -timeout 10m

.PHONY: test-gateway-api-server
test-gateway-api-server: ## the same controller at a kube-apiserver and etcd, which it builds once: half an hour (as root)
	bash test/kubernetes/run.sh

CHAOS ?=

.PHONY: chaos
chaos: ## every fault of docs/chaos.md (as root), whose table is written anew: CHAOS="-rows 3,9 -runs 10 -seed 42"
	go test ./test/chaos -chaos -table $(CURDIR)/docs/chaos.md $(CHAOS) -count 1 -timeout 6h -v

SIMULATE ?=

.PHONY: simulate
simulate: ## 100,000 random schedules of a cluster under fake time: SIMULATE="-schedules 5000 -first 1", SIMULATE="-seed 42" to repeat one
	go test ./internal/testkit/simulate -run TestSchedulesHoldTheirPromises -schedules 100000 $(SIMULATE) -count 1 -timeout 3h -v

TAKEOVER ?= -clients 15000 -rate 2000 -upgrades 50

.PHONY: takeover
takeover: build ## upgrades of a running server under load, TAKEOVER= flags of bench/takeover; on a quiet machine
	go run ./bench/takeover -weir bin/weir $(TAKEOVER)

.PHONY: observer
observer: ## compile the eBPF programs of weir observe again (clang, llvm, libbpf-dev)
	@cd internal/observe/observer && for p in syscalls sched faults tcp; do \
		GOPACKAGE=observer go run github.com/cilium/ebpf/cmd/bpf2go@v0.22.0 -go-package observer -target amd64,arm64 -output-dir . \
			-cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/$$(uname -m)-linux-gnu" $$p bpf/$$p.c || exit 1; \
	done; rm -f *_bpfel.go; cat bpf/common.h bpf/syscalls.c bpf/sched.c bpf/faults.c bpf/tcp.c | sha256sum | cut -d ' ' -f 1 > bpf/sources.sha256

fuzz: ## every fuzz target for FUZZTIME (10s)
	@set -e; for pkg in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; done

bench: ## every benchmark, with allocations
	go test -run '^$$' -bench . -benchmem $$(go list ./... | grep -v /test/)

SITE ?= site

.PHONY: site screenshots
site: ## SITE (site): the documentation as a static site, from docs/
	cd docs/site && go run . -root ../.. -out "$(abspath $(SITE))"

screenshots: build ## the pictures of the documentation, taken anew with Chromium (after make test has installed what it needs)
	bash docs/screenshots.sh

DIST ?= dist

.PHONY: release check-release
release: ## DIST (dist): archives, deb, rpm, SBOM and sums of the commit, for VERSION= or its tag
	bash packaging/release.sh $(DIST)

check-release: ## what has to hold before a release: reproducible, licenses, secrets, links, packages installed in a Debian (as root)
	bash packaging/check.sh

clean: ## what was built; .cache stays (rm -r .cache to have it all again)
	rm -rf bin $(DIST) $(SITE)

SCENARIOS ?= default
RUNS ?= 5
N ?= 0
PEERS ?= nchan uwebsockets centrifugo limit-batch

.PHONY: bench-peers
bench-peers: build ## weir against the C limit and installed peers: SCENARIOS=, RUNS=, PEERS=, N=
	mkdir -p $(CACHE)/bench && cp bin/weir $(CACHE)/bench/
	gcc -O2 -Wall -o $(CACHE)/bench/limit bench/limit/limit.c
	gcc -O2 -Wall -o $(CACHE)/bench/load bench/load/*.c
	go run ./bench/run -bin $(CACHE)/bench -scenarios "$(SCENARIOS)" -runs $(RUNS) -n $(N) -peers "$(PEERS)"
