#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs the tests. Prints the time of each stage.
#   tests/run.sh                        release: all tests; then address+undefined sanitizers: unit, property and fuzz tests
#   tests/run.sh unit golden            only these labels, release
#   tests/run.sh --variant asan unit    another build variant: release asan tsan cuda
# Labels: unit golden property sim chaos e2e gpu bench lint fuzz
. "$(dirname "${BASH_SOURCE[0]}")/../launch/setup.sh"

variant= labels=()
while [ $# -gt 0 ]; do
  case $1 in
    --variant) [ $# -ge 2 ] || di_die "--variant needs a name"; variant=$2; shift ;;
    -h | --help) sed -n '3,8p' "${BASH_SOURCE[0]}" | cut -c3-; exit 0 ;;
    -*) di_die "unknown option '$1' (see tests/run.sh --help)" ;;
    unit | golden | property | sim | chaos | e2e | gpu | bench | lint | fuzz) labels+=("$1") ;;
    *) di_die "unknown label '$1'; there are: unit golden property sim chaos e2e gpu bench lint fuzz" ;;
  esac
  shift
done

times=()
stage() { # stage NAME COMMAND...: runs, remembers how long it took
  local name=$1 begin=$SECONDS rc=0; shift
  di_say "$name"
  "$@" || rc=$?
  times+=("$(printf '%-28s %4d s%s' "$name" $((SECONDS - begin)) "$([ $rc -eq 0 ] || echo "   FAILED")")")
  return $rc
}
report() { printf '\n%s\n' "time per stage:" >&2; printf '  %s\n' "${times[@]}" >&2; }
trap report EXIT

build() { # build VARIANT [TARGET...]: the log only when it fails
  local log=$di_root/build-$1.log
  di_build "$@" >"$log" 2>&1 || { grep -nE 'error|FAILED' "$log" | head -40 >&2; tail -30 "$log" >&2; di_die "build of '$1' failed; the whole log is $log"; }
}
check() { # check VARIANT LABEL-REGEX
  local xml=$di_root/build-$1/ctest.xml
  ctest --test-dir "$di_root/build-$1" --output-on-failure --no-tests=error --timeout 600 -j "${DI_JOBS:-$(nproc)}" -L "$2" --output-junit "$xml"
}

stage "packages" di_setup
if [ -n "$variant" ] || [ ${#labels[@]} -gt 0 ]; then
  variant=${variant:-release}
  regex=$(IFS='|'; echo "${labels[*]:-unit|golden|property|sim|chaos|e2e|lint|fuzz}")
  stage "build $variant" build "$variant"
  stage "test $variant" check "$variant" "^($regex)\$"
else
  stage "build release" build release
  stage "test release" check release '^(unit|golden|property|sim|chaos|e2e|lint)$'
  stage "build asan+ubsan" build asan sanitized_tests
  stage "test asan+ubsan" check asan '^sanitized$'
fi
