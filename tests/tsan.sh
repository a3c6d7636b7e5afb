#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Thread sanitizer lane, outside .ci/run: builds CAF's Debian source under the sanitizer once (cached; about five minutes), then the
# tests of bus and actors against it. Debian's own CAF library is not instrumented and reports races that are none.
#   tests/tsan.sh [ctest label regex]         default: unit|property|sim
. "$(dirname "${BASH_SOURCE[0]}")/../launch/setup.sh"

labels=${1:-unit|property|sim}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/di-caf-tsan
prefix=$cache/prefix

fetch_caf() { # the source archive that Debian serves for bookworm, through apt and its signatures
  mkdir -p "$cache/lists/partial"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" >"$cache/src.list"
  local options=(-o "Dir::Etc::SourceList=$cache/src.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$cache/lists")
  (cd "$cache" && apt-get "${options[@]}" update -qq && apt-get "${options[@]}" source --tar-only -qq actor-framework) >"$cache/fetch.log" 2>&1 ||
    { tail -5 "$cache/fetch.log" >&2; di_die "could not fetch CAF's source; the log is $cache/fetch.log"; }
  tar -C "$cache" -xf "$cache"/actor-framework_*.orig.tar.gz
}

build_caf() {
  local source=("$cache"/actor-framework-*/)
  cmake -S "${source[0]}" -B "$cache/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POLICY_DEFAULT_CMP0042=NEW "-DCMAKE_CXX_FLAGS=-fsanitize=thread -O1 -g1 -w" \
    -DCAF_NO_IO=ON -DCAF_NO_OPENSSL=ON -DCAF_NO_OPENCL=ON -DCAF_NO_PYTHON=ON -DCAF_NO_TOOLS=ON -DCAF_NO_EXAMPLES=ON -DCAF_NO_UNIT_TESTS=ON
  cmake --build "$cache/build" --parallel "${DI_JOBS:-$(nproc)}"
  cmake --install "$cache/build"
}

di_setup
if [ ! -e "$prefix/lib/libcaf_core.so" ]; then
  di_say "building CAF under the thread sanitizer into $prefix"
  fetch_caf
  build_caf >"$cache/build.log" 2>&1 || { tail -20 "$cache/build.log" >&2; di_die "CAF did not build; the log is $cache/build.log"; }
fi
di_say "building the tests"
export CMAKE_PREFIX_PATH=$prefix
di_build tsan sanitized_tests >"$di_root/build-tsan.log" 2>&1 || { grep -nE 'error|FAILED' "$di_root/build-tsan.log" | head -20 >&2; di_die "the build failed; the log is build-tsan.log"; }
# libzmq is not instrumented; no suppression names our code.
export LD_LIBRARY_PATH=$prefix/lib TSAN_OPTIONS="suppressions=$di_root/tests/support/tsan.supp ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66"
ctest --test-dir "$di_root/build-tsan" --output-on-failure --no-tests=error --timeout 600 -j "${DI_JOBS:-$(nproc)}" -L '^sanitized$'
