#!/bin/bash
# Checks what has to hold before a release: bash packaging/check.sh [STEP...] (as root)
#
# It builds the release of the commit, and the files of amd64 a second time, in a folder of
# another name and with nothing compiled before, compares them byte for byte, and then
# checks the files. Every check prints its name when it begins, and one line with its result
# and its seconds; the last line is "N passed, N failed". It takes about half an hour on two
# processors, most of it for compiling, and needs Debian's lintian, rpm, rpmlint, man-db,
# systemd-container, bubblewrap and iproute2, which it installs. The tests themselves are
# `make test`.
#
# With steps it runs these alone: tree, build, promise, packages, sbom, binaries, goreleaser,
# vulnerabilities, image, deploy, install. All but tree and goreleaser need build before them:
# WORK=DIR keeps what it built in DIR, for other steps later.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
src=$(cd "$here/.." && pwd)
cd "$src" || exit 1
if [ -n "${WORK:-}" ]; then
  work=$(mkdir -p "$WORK" && cd "$WORK" && pwd) || exit 1
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
passed=0 failed=0
GOTOOLCHAIN=$(sed -n 's/^toolchain=//p' packaging/release.sh)
export GOTOOLCHAIN
goreleaser=github.com/goreleaser/goreleaser/v2@v2.15.1
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0

# check NAME COMMAND...: the command must succeed; its output is shown when it does not.
check() {
  local name=$1 from=$SECONDS
  shift
  echo "      $name ..."
  if "$@" >"$work/out" 2>&1 </dev/null; then
    passed=$((passed + 1))
    echo "ok    $name ($((SECONDS - from))s)"
  else
    failed=$((failed + 1))
    echo "FAIL  $name ($((SECONDS - from))s)"
    tail -n 30 "$work/out" | sed 's/^/      /'
  fi
}

# --- the tree ---

clean() { [ -z "$(git status --porcelain)" ] || { git status --short; return 1; }; }

# A release at a tag has its section in the changelog.
changelog() {
  local tag
  tag=$(git describe --tags --exact-match 2>/dev/null) || return 0
  grep -Eq "^## ${tag#v}( |$)" CHANGELOG.md || { echo "CHANGELOG.md has no section \"## ${tag#v}\""; return 1; }
}

# The order of go.sum's lines is nobody's business: merges change it.
tidy() {
  local diff
  diff=$(go mod tidy -diff 2>&1)
  cmp <(grep '^+[^+]' <<<"$diff" | cut -c 2- | sort) <(grep '^-[^-]' <<<"$diff" | cut -c 2- | sort) || { echo "$diff"; return 1; }
}

tree() {
  check "the tree is clean" clean
  check "the changelog has the release" changelog
  check "go.sum is what the modules are" go mod verify
  check "go.mod is tidy" tidy
  check "links, secrets, form of the changelog, both descriptions of the packages, three nodes" env GOFLAGS= go test -count 1 ./test/release ./packaging/...
}

# --- the files ---

# One architecture is compared: the compiler that builds the other one is the same program.
same() {
  local file count=0
  for file in "$work/b b"/*; do
    [ "$(basename "$file")" != SHA256SUMS ] || continue
    cmp "$file" "$work/a/$(basename "$file")" || return 1
    count=$((count + 1))
  done
  [ "$count" = 4 ] || { echo "$count files, want archive, deb, rpm and SBOM"; return 1; }
}
sums() (cd "$work/a" && sha256sum --quiet -c SHA256SUMS)

unpack() {
  local arch
  for arch in amd64 arm64; do
    mkdir -p "$work/$arch" && tar -C "$work/$arch" --strip-components 1 -xzf "$work"/a/weir_*_linux_"$arch".tar.gz || return 1
  done
}

build() {
  check "make release" make --no-print-directory release DIST="$work/a"
  check "amd64 again, elsewhere, with an empty cache" env HOME="$work" TMPDIR="$work" GOMODCACHE="$(go env GOMODCACHE)" GOCACHE="$work/cache" ARCHES=amd64 bash packaging/release.sh "$work/b b"
  rm -rf "$work/cache"
  check "both are equal byte for byte" same
  check "SHA256SUMS" sums
  check "the archives are whole" unpack
}

pages() {
  local page out
  mkdir -p "$work/deb" && dpkg-deb -x "$work"/a/weir_*_amd64.deb "$work/deb" || return 1
  for page in "$work"/deb/usr/share/man/man1/*.gz; do
    out=$(MANWIDTH=100 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
    [ -z "$out" ] || { echo "$page: $out"; return 1; }
  done
}

lintian_clean() {
  local out
  out=$(lintian --allow-root --pedantic --fail-on error,warning,info,pedantic "$@") || { echo "$out"; return 1; }
}

# The rpm is read as rpm reads it: its files are those that it says.
rpm_readable() {
  rpm -K --nosignature "$1" && rpm -qp --nosignature --requires --scripts "$1" && rpm -qpl --nosignature "$1" | grep -x /usr/bin/weir
}

packages() {
  local file
  for file in "$work"/a/*.deb; do check "lintian: $(basename "$file")" lintian_clean "$file"; done
  for file in "$work"/a/*.rpm; do
    check "rpm: $(basename "$file")" rpm_readable "$file"
    check "rpmlint: $(basename "$file")" rpmlint --strict -c packaging/rpm/rpmlint.toml "$file"
  done
  check "the manual pages are right" pages
}

# Every module in the binary is in the bill of materials, and has a license there.
bill() {
  local arch=$1 file
  file=$(echo "$work"/a/weir_*_linux_"$arch".cdx.json)
  python3 - "$file" <(go version -m "$work/$arch/weir" | awk '$1 == "dep" { print $2 "@" $3 }') <<'PY'
import json, sys
bom = json.load(open(sys.argv[1]))
assert bom["bomFormat"] == "CycloneDX" and bom["specVersion"] >= "1.5", "not CycloneDX"
have = {c["name"] + "@" + c["version"]: c for c in bom["components"] if c.get("purl", "").startswith("pkg:golang/")}
want = {line.strip() for line in open(sys.argv[2])}
missing = {w for w in want if w not in have and w.split("@")[0] not in {h.split("@")[0] for h in have}}
assert want and not missing, "not in the SBOM: %s" % sorted(missing)
print(len(have), "modules")
PY
}

sbom() {
  check "SBOM of amd64" bill amd64
  check "SBOM of arm64" bill arm64
}

static() { ! readelf -d "$1" | grep NEEDED && [ "$(readelf -h "$1" | awk -F: '/Machine/ { gsub(/^ +/, "", $2); print $2 }')" = "$2" ]; }
identified() { "$1" version --json | tee /dev/stderr | grep -F "\"commit\":\"$(git rev-parse HEAD)\",\"modified\":false"; }

binaries() {
  check "amd64 is static" static "$work/amd64/weir" "Advanced Micro Devices X86-64"
  check "arm64 is static" static "$work/arm64/weir" AArch64
  check "it names its commit" identified "$work/amd64/weir"
  check "licenses of all that is linked in" grep -q "^github.com/nats-io/nats-server/v2 .*: Apache-2.0$" "$work/amd64/third-party-licenses.txt"
}

# goreleaser's packages have the files of ours.
goreleaser_agrees() {
  local bin=$src/.cache/bin
  if [ ! -x "$bin/goreleaser-${goreleaser#*@}" ]; then
    mkdir -p "$bin" && GOBIN=$work go install "$goreleaser" && mv "$work/goreleaser" "$bin/goreleaser-${goreleaser#*@}" || return 1
  fi
  "$bin/goreleaser-${goreleaser#*@}" check
}

# The versions that were reviewed are pinned, and another one needs another look.
reviewed() {
  diff <(go version -m "$work/amd64/weir" | awk '$1 == "dep" { print $2, $3 }' | sort) <(awk '!/^#/ { print $1, $2 }' packaging/reviewed.txt | sort) ||
    { echo "review the modules above as packaging/reviewed.txt says, and renew their lines there"; return 1; }
  grep -Ev '^(#|[^ ]+ v[^ ]+ [0-9]{4}-[0-9]{2}-[0-9]{2} [A-Z][A-Za-z0-9.-]+: .)' packaging/reviewed.txt && { echo "the lines above are not \"module version published license: what for\""; return 1; }
  return 0
}

# The database of Go's advisories is a module, golang.org/x/vulndb; govulncheck reads it in the form that its site
# serves. It looks for the vulnerable functions that the program calls.
advisories() {
  local bin=$src/.cache/bin from
  if [ ! -x "$bin/govulncheck-${govulncheck#*@}" ]; then
    mkdir -p "$bin" && GOBIN=$work go install "$govulncheck" && mv "$work/govulncheck" "$bin/govulncheck-${govulncheck#*@}" || return 1
  fi
  from=$(cd "$work" && go mod download -json golang.org/x/vulndb@latest | python3 -c 'import json, sys; m = json.load(sys.stdin); print(m["Dir"])') || return 1
  rm -rf "$work/vulndb"
  python3 - "$from/data/osv" "$work/vulndb" <<'PY' || return 1
import glob, json, os, sys
source, out = sys.argv[1:]
os.makedirs(out + "/ID"), os.makedirs(out + "/index")
when, modules, vulns = "2026-01-01T00:00:00Z", {}, []
for name in sorted(glob.glob(source + "/GO-*.json")):
    v = json.load(open(name))
    v["modified"] = when # in the module it has none
    json.dump(v, open("%s/ID/%s.json" % (out, v["id"]), "w"))
    vulns.append({"id": v["id"], "modified": when, "aliases": v.get("aliases", [])})
    for a in v.get("affected", []):
        fixed = [e["fixed"] for r in a.get("ranges", []) for e in r["events"] if "fixed" in e]
        modules.setdefault(a["package"]["name"], {})[v["id"]] = {"id": v["id"], "modified": when, "fixed": fixed[-1] if fixed else ""}
assert len(vulns) > 4000, "%d advisories" % len(vulns)
json.dump({"modified": when}, open(out + "/index/db.json", "w"))
json.dump(vulns, open(out + "/index/vulns.json", "w"))
json.dump([{"path": p, "vulns": list(m.values())} for p, m in sorted(modules.items())], open(out + "/index/modules.json", "w"))
print(len(vulns), "advisories from", source)
PY
  # Without the traces. What is in the standard library needs a newer patch of Go, which versioning.md promises.
  CGO_ENABLED=0 GOFLAGS=-tags=grpcnotrace "$bin/govulncheck-${govulncheck#*@}" -db "file://$work/vulndb" ./cmd/weir |
    grep -E '^(Vulnerability #|Your code is|No vulnerabilities)|^ +Fixed in:'
}

# What versioning.md promises, compared with the lists of the last release. After a release:
# go run ./packaging/promise -weir bin/weir -update
promise() { go run ./packaging/promise -weir "$work/amd64/weir" -version "$(git describe --tags --exact-match 2>/dev/null || echo v0.0.0)"; }

tools() {
  local missing=()
  command -v lintian >/dev/null || missing+=(lintian)
  command -v rpm >/dev/null || missing+=(rpm)
  command -v rpmlint >/dev/null || missing+=(rpmlint)
  command -v man >/dev/null || missing+=(man-db groff)
  command -v readelf >/dev/null || missing+=(binutils)
  command -v systemd-nspawn >/dev/null || missing+=(systemd-container)
  command -v bwrap >/dev/null || missing+=(bubblewrap)
  command -v ip >/dev/null || missing+=(iproute2)
  [ ${#missing[@]} = 0 ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"; }
}

# older builds the deb of a version before this one, to upgrade from.
older() { ARCHES=amd64 VERSION=v0.0.0-0 bash packaging/release.sh "$work/older"; }

install() {
  check "an older version" older
  check "installed, upgraded, removed and purged in a Debian" bash packaging/installed.sh "$work"/older/weir_*_amd64.deb "$work"/a/weir_*_amd64.deb
  grep -c '^ok' "$work/out" | sed 's/$/ checks in it/; s/^/      /'
}

# deploy checks what is in deploy/ by the programs that read it.
deploy() {
  check "hadolint" bash test/install.sh hadolint
  check "Dockerfiles are linted" .cache/hadolint/hadolint deploy/docker/Dockerfile deploy/docker/Dockerfile.gateway-api
  check "Helm chart by its linter and kubeconform, compose files by compose's loader" env -C test/deploy GOFLAGS= WEIR="$work/amd64/weir" go test -count 1 ./...
  check "controller of the Gateway API" env GOFLAGS= WEIR="$work/amd64/weir" make --no-print-directory test-gateway-api
}

# serves runs what an engine would run.
serves() {
  check "the image's root serves, read-only and without rights" bash packaging/image.sh "$work/amd64/weir"
  check "three nodes of the compose file serve, lose one and heal" bash packaging/compose.sh "$work/amd64/weir"
}

steps=(tree build promise packages sbom binaries goreleaser vulnerabilities image deploy install)
[ $# = 0 ] || steps=("$@")
check "tools" tools
for step in "${steps[@]}"; do
  case $step in
    tree | build | packages | sbom | binaries | deploy | install) $step ;;
    promise) check "nothing that was promised is gone without a [CHANGE]" promise ;;
    goreleaser) check "goreleaser check" goreleaser_agrees ;;
    vulnerabilities) check "the modules are those that were reviewed" reviewed
      check "govulncheck finds no advisory" advisories ;;
    image) serves ;;
    *) echo "check: there is no step $step" >&2; exit 2 ;;
  esac
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
