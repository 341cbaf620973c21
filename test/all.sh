#!/bin/bash
# Everything: what the judges need, both builds, the unit tests, the judges, lint:
# bash test/all.sh [setup]; with setup, only the installing and the build. Called by
# `make test` and test/fresh.sh. The last line is "N passed, N failed".
#
# In continuous integration the set-up also runs in a Debian of its own, meanwhile. What the
# judges need is installed while Weir compiles. The linter and the other checks, which need
# minutes of processor time, run beside the unit tests, which often wait.
set -u
cd "$(dirname "$0")/.." || exit 1
cache=$PWD/.cache
mkdir -p "$cache"
passed=0 failed=0 unsteady=() background=() begin=$SECONDS
declare -A processes
# Or every process with the race detector, each test and each server it starts, ends a second late.
export GORACE="${GORACE:-atexit_sleep_ms=0}"
# What the go command has compiled serves again where the settings are the same: these are those of
# `make build`, for all that runs without the race detector.
shipped=(-trimpath -tags=grpcnotrace)
flags="${GOFLAGS:-} ${shipped[*]}"
plain=(env CGO_ENABLED=0 GOFLAGS="$flags")

# step runs one thing that passes or fails as a whole.
step() {
  local name=$1 from=$SECONDS status
  shift
  # In the background, bash must wait for it to be able to end it.
  if [ "$BASHPID" = $$ ]; then "$@"; else "$@" & wait "$!"; fi
  status=$?
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    echo "ok    $name ($((SECONDS - from))s)"
  else
    failed=$((failed + 1))
    echo "FAIL  $name ($((SECONDS - from))s)"
  fi
}

formatted() {
  local files
  files=$(git ls-files -z '*.go' | xargs -0 gofmt -l) || return 1
  [ -z "$files" ] || { echo "gofmt: $files"; return 1; }
}

# finish prints the count and ends.
finish() {
  [ ${#unsteady[@]} = 0 ] || printf 'UNSTEADY, passed at the second run only: %s\n' "${unsteady[@]}"
  echo "after $((SECONDS - begin))s"
  echo "$passed passed, $failed failed" | tee "$cache/count"
  [ "$failed" = 0 ]
  exit
}

# beside runs the function $1, which is steps, in the background; joined waits for it, shows
# what it wrote and counts its steps.
beside() {
  rm -f "$cache/$1.steps"
  (
    trap 'kill $(jobs -p); exit 1' TERM
    passed=0 failed=0
    "$1"
    echo "$passed $failed" >"$cache/$1.steps"
  ) >"$cache/$1.log" 2>&1 </dev/null &
  processes[$1]=$!
  background+=("$!")
}

joined() {
  local p=0 f=1
  wait "${processes[$1]}"
  cat "$cache/$1.log"
  [ ! -f "$cache/$1.steps" ] || read -r p f <"$cache/$1.steps"
  passed=$((passed + p)) failed=$((failed + f))
}

# counts prints how many tests passed and failed by tally's last line in the file $1.
counts() {
  local line
  line=$(tail -n 1 "$1" | sed -n 's/^\([0-9]*\) tests passed, \([0-9]*\) failed$/\1 \2/p')
  echo "${line:-0 1}"
}

# gotest runs go test and counts its tests; test/tally says what counts how, and go vet has run. The
# first argument is tally's. At most three failed tests of a run are run once more,
# alone; what passes then is counted and named at the end. A package that ended before its tests
# did is one of them: what has not passed of it runs again. Data races, panics, skips and builds
# that fail are final.
gotest() {
  local show=$1 out=$cache/tally.log again=$cache/failed build=() p f q g pkg name skip
  shift
  for name in "$@"; do
    case $name in -race | -trimpath | -tags=*) build+=("$name") ;; esac
  done
  : >"$again"
  go test -json -vet=off "$@" 2>&1 </dev/null | "$cache/bin/tally" $show -failed "$again" | tee "$out"
  read -r p f <<<"$(counts "$out")"
  if [ "$f" -le 3 ] && ! grep -qx final "$again"; then
    while read -r pkg name skip; do
      echo "again $pkg $name"
      [ "$name" = . ] || name="^$name\$"
      go test -json -vet=off "${build[@]}" -count=1 -timeout 10m -run "$name" ${skip:+-skip "$skip"} "$pkg" 2>&1 </dev/null | "$cache/bin/tally" -v | tee "$out"
      read -r q g <<<"$(counts "$out")"
      p=$((p + q)) f=$((f - 1 + g))
      [ "$g" != 0 ] || unsteady+=("$pkg $name")
    done < <(grep . "$again")
  fi
  passed=$((passed + p)) failed=$((failed + f))
}

command -v go >/dev/null || { echo "make test: Go 1.26 is needed"; echo "0 passed, 1 failed"; exit 1; }

# idle is for what runs beside tests: it gets the processor when they wait.
idle() { renice -n 19 "$BASHPID" >/dev/null; }

debian() {
  idle
  step "set-up in a Debian of its own" bash test/fresh.sh setup
}

installs() {
  local part
  for part in autobahn npm protocols grpc interop chromium slowhttptest nginx wrk h2load prometheus redis postgres tools; do
    step "install $part" bash test/install.sh "$part"
  done
}

modules=(integrations/gin integrations/echo examples)

checks() {
  local module
  idle
  # The embedded hub and the clients are for other systems too.
  step "portable to macOS" env GOOS=darwin go vet ./hub/... ./client/... ./sse/... ./websocket/...
  for module in "${modules[@]}"; do
    # shellcheck disable=SC2016 # the inner shell fills it in
    step "go vet $module" bash -c 'cd "$0" && go vet -race ./...' "$module"
  done
  step "go vet docs/site" "${plain[@]}" bash -c 'cd docs/site && go vet ./...'
  step "golangci-lint" "${plain[@]}" make --no-print-directory lint
}

trap 'kill "${background[@]}" 2>/dev/null' EXIT
step "race detector's compiler" bash test/install.sh gcc
beside installs
fresh=
[ "${CI:-}" != true ] || [ "${FRESH:-}" = true ] || { fresh=yes && beside debian; }
step "build" make --no-print-directory build
[ "${1:-}" != setup ] || { joined installs && finish; }
step "go vet" go vet -race ./... # as the tests are built
step "gofmt" formatted
beside checks
"${plain[@]}" go build -o "$cache/bin/tally" ./test/tally
skip='(Simulated|Exhaustively)$'
if [ "${FRESH:-}" = true ]; then
  # test/fresh.sh has a process namespace, in which processes have other numbers than eBPF programs see.
  ebpf='TestConnectionsThatEndAreCounted TestSegmentsSentAgainAreCounted TestAQuietProcessHasNoFindings'
  echo "left out in a process namespace, run by make test: $ebpf"
  skip="$skip|^(${ebpf// /|})$"
fi
joined installs
# shellcheck disable=SC2046 # the list is words
gotest "" -race -parallel 4 -timeout 10m -skip "$skip" $(go list ./... | grep -vE '/test/|/archtest$')
# The race detector allocates, so what must not is counted without it. Simulations, exhaustive
# trials and what reads the tree have one goroutine, and take five to ten times as long with it.
CGO_ENABLED=0 GOFLAGS=$flags gotest "" -count=1 -run '(AllocateNothing|Simulated|Exhaustively)$' \
  ./cmd/weir ./internal/app/... ./internal/front/downstream ./internal/front/limit ./internal/measure/capacity ./internal/measure/lab/job ./internal/proxy/upstream ./internal/testkit/history
CGO_ENABLED=0 GOFLAGS=$flags gotest "" ./internal/testkit/archtest
# What is a module of its own, so that Weir does not depend on it.
for module in "${modules[@]}"; do
  pushd "$module" >/dev/null && gotest "" -race -timeout 5m ./... && popd >/dev/null || exit 1
done
# The documentation's site, another one; it has no goroutines for the race detector.
pushd docs/site >/dev/null && CGO_ENABLED=0 GOFLAGS=$flags gotest "" ./... && popd >/dev/null || exit 1
# Before the judges, whose measurements they would disturb.
[ -z "$fresh" ] || joined debian
joined checks
# Judges are clients of the real program, which has the race detector. They themselves have it where they
# run Weir's code: it takes several times the processor time, and of that there is too little.
inside='^(TestOneCorpusAtEveryFront|TestPlannedRestart.*)$'
gotest -v -race -count=1 -p 2 -timeout 15m -run "$inside" ./test/fronts ./test/e2e
# Alone, so that nothing disturbs them, those that measure; the others mostly wait.
measure='/test/(conformance|crosscheck|observe)$'
gotest -v -race -count=1 -p 1 -parallel 6 -timeout 15m ./test/crosscheck ./test/observe
CGO_ENABLED=0 gotest -v "${shipped[@]}" -count=1 -parallel 6 -timeout 15m ./test/conformance
# shellcheck disable=SC2046 # the list is words
CGO_ENABLED=0 gotest -v "${shipped[@]}" -count=1 -p 3 -timeout 15m -skip "$inside" $(go list ./test/... | grep -vE "$measure")

finish
