#!/bin/bash
# Builds a release of the commit that is checked out: bash packaging/release.sh [DIR]
#
# DIR (dist) gets, for linux on amd64 and arm64: an archive with the static binary, a deb,
# an rpm and an SBOM (CycloneDX); the manual pages and completions are within the first
# three; SHA256SUMS is over all of them. VERSION=v1.2.3 names the release; without it the
# commit's tag does, or, without a tag, v0.0.0 with the commit's date and hash. ARCHES=amd64
# builds for that one alone.
#
#   bash packaging/release.sh --stage   only what all packages share, into .cache/stage
#   bash packaging/release.sh --tools   only the tools, into .cache/bin
#
# The commit is built from a clone of its own in a folder of any name. Nothing of the
# machine gets into the files: two builds of a commit by the same Go are equal byte for
# byte (packaging/check.sh compares them). Only the Go module proxy is asked.
set -euo pipefail
src=$(cd "$(dirname "$0")/.." && pwd)
bin=$src/.cache/bin
stage=.cache/stage # of the tree that is built; nfpm.yaml and .goreleaser.yaml name it
# The newest patch of the Go version in go.mod (docs/reference/versioning.md). packaging/check.sh fails when its standard
# library has an advisory that concerns weir: then there is a newer one.
toolchain=go1.26.11
export GOTOOLCHAIN=$toolchain
export LC_ALL=C TZ=UTC GOFLAGS= GOWORK=off GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0
umask 022

nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
cyclonedx=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

die() { echo "release: $*" >&2; exit 1; }

# tool prints the path of a Go program at its version, built the first time.
tool() {
  local name version
  name=$(basename "${1%@*}") version=${1#*@}
  if [ ! -x "$bin/$name-$version" ]; then
    mkdir -p "$bin"
    GOBIN=$bin/.build-$name go install -trimpath "$1" >&2 || die "$1 cannot be built"
    mv "$bin/.build-$name/$name" "$bin/$name-$version"
    rm -r "$bin/.build-$name"
  fi
  echo "$bin/$name-$version"
}

# version of the commit in $PWD, as Go writes versions.
version() {
  local v
  v=${VERSION:-$(git describe --tags --exact-match 2>/dev/null || git log -1 --date=format-local:%Y%m%d%H%M%S --format='v0.0.0-%cd-%h' --abbrev=12)}
  [[ $v =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || die "invalid VERSION \"$v\": want v1.2.3, or v1.2.3-rc.1 for a release candidate"
  echo "$v"
}

# compile builds the binary of $PWD for one architecture.
compile() {
  GOOS=linux GOARCH=$1 go build -trimpath -tags grpcnotrace -buildvcs=true -ldflags "-s -w -X main.version=$VERSION" -o "$2" ./cmd/weir
}

# stage writes what the packages of every architecture share: manual pages, completions,
# licenses of what is linked in, changelogs.
stage() {
  local dir=$stage shell
  rm -rf "$dir" && mkdir -p "$dir/man" "$dir/completions"
  # With the settings of compile, so that nothing is compiled twice.
  go test -trimpath -tags grpcnotrace -vet=off ./cmd/weir -count 1 -run '^TestManPages$' -man "$PWD/$dir/man" >&2
  # What people run by hand; the completions' own pages are weir completion --help.
  rm -f "$dir"/man/weir-completion*.1
  gzip -9n "$dir"/man/*.1
  compile "$(go env GOHOSTARCH)" "$dir/weir"
  for shell in bash:weir.bash zsh:_weir fish:weir.fish; do
    "$dir/weir" completion "${shell%:*}" >"$dir/completions/${shell#*:}"
  done
  go run -trimpath ./packaging/licenses "$dir/weir" | gzip -9n >"$dir/licenses.txt.gz"
  gzip -9n <CHANGELOG.md >"$dir/changelog.gz"
  printf 'weir (%s-1) unstable; urgency=medium\n\n  * This release; /usr/share/doc/weir/changelog.gz says what changed.\n\n -- Weir maintainers <weir-gateway@users.noreply.github.com>  %s\n' \
    "$PACKAGE_VERSION" "$(date -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$dir/changelog.Debian.gz"
  rm "$dir/weir"
}

# archive packs the binary and what goes with it.
archive() {
  local arch=$1 binary=$2 dir
  dir=$work/weir_${VERSION#v}_linux_$arch
  mkdir -p "$dir/systemd"
  install -m 755 "$binary" "$dir/weir"
  gzip -dc "$stage/licenses.txt.gz" >"$dir/third-party-licenses.txt"
  cp -r "$stage/man" "$stage/completions" LICENSE README.md CHANGELOG.md packaging/weir.yaml "$dir"
  cp deploy/systemd/weir.* "$dir/systemd"
  tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=u-w -cf - "$(basename "$dir")" |
    gzip -9n >"$out/$(basename "$dir").tar.gz"
}

# build writes all files for one architecture.
build() {
  local arch=$1 binary=$stage/linux_$1/weir kind
  compile "$arch" "$binary"
  archive "$arch" "$binary"
  for kind in deb rpm; do
    ARCH=$arch "$(tool $nfpm)" package --config packaging/nfpm.yaml --packager $kind --target "$out/" >&2
  done
  GOOS=linux GOARCH=$arch "$(tool $cyclonedx)" app -json -licenses -packages -noserial -notimestamp -main cmd/weir \
    -output "$out/weir_${VERSION#v}_linux_$arch.cdx.json" . >&2
}

# environment sets what the files say of the commit in $PWD.
environment() {
  VERSION=$(version)
  # A release candidate comes before its release: ~ sorts before the end.
  PACKAGE_VERSION=$(sed 's/^v//; s/-/~/; s/-/./g' <<<"$VERSION")
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export VERSION PACKAGE_VERSION SOURCE_DATE_EPOCH
}

release() {
  local arch
  out=$(mkdir -p "$1" && cd "$1" && pwd)
  [ -z "$(ls -A "$out")" ] || die "$out is not empty: remove it, or name another folder"
  [ -z "$(git -C "$src" status --porcelain)" ] || die "there are changes that are not committed: a release is built from a commit"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  git clone -q "$src" "$work/src"
  git -C "$work/src" checkout -q "$(git -C "$src" rev-parse HEAD)"
  cd "$work/src"
  environment
  stage
  for arch in ${ARCHES:-amd64 arm64}; do build "$arch"; done
  (cd "$out" && sha256sum -- * >"$work/SHA256SUMS")
  mv "$work/SHA256SUMS" "$out/"
  echo "release: $VERSION of $(git rev-parse --short=12 HEAD) in $out" >&2
}

cd "$src"
case ${1:-} in
  --tools) tool $nfpm && tool $cyclonedx ;;
  --stage) environment && stage ;;
  -*) die "unknown option $1: see the head of this file" ;;
  *) release "${1:-dist}" ;;
esac
