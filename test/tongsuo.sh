#!/bin/sh
# Builds Tongsuo's openssl from the crate tongsuo-src into .cache/tongsuo, unless it is there,
# and prints its path. It takes a C compiler, cargo and about two minutes of CPU.
set -eu
crate=850.1.1
cache=$(cd "$(dirname "$0")/.." && pwd)/.cache/tongsuo
bin=$cache/openssl-$crate
if [ ! -x "$bin" ]; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
  mkdir -p "$cache" "$build/src"
  cd "$build"
  printf '[package]\nname = "tongsuo-fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\ntongsuo-src = "=%s"\n' "$crate" > Cargo.toml
  : > src/lib.rs
  cargo vendor --quiet vendor > /dev/null
  cd vendor/tongsuo-src/tongsuo
  { ./config enable-ntls no-tests no-shared && make -j2 build_programs; } > "$cache/build.log" 2>&1 ||
    { echo "Tongsuo does not build: see $cache/build.log" >&2; exit 1; }
  cp apps/openssl "$bin.new" && mv "$bin.new" "$bin"
fi
echo "$bin"
