#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by launch/quickstart.sh and tests/run.sh: checks the system, installs what launch/packages.txt lists, builds.
#   di_setup                      installs missing packages (apt; sudo only if not root)
#   di_build VARIANT [TARGET...]  configures and builds build-VARIANT; VARIANT: release asan tsan cuda
set -euo pipefail
di_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

di_say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
di_die() { printf 'error: %s\n' "$*" >&2; exit 2; }

di_packages() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$di_root/launch/packages.txt"; }

di_setup() {
  local missing=() package
  if ! command -v apt-get >/dev/null 2>&1; then
    di_die "this script installs with apt and found none. It is written for Debian 12; on another system install the
equivalents of the packages in launch/packages.txt, then run: cmake -S . -B build-release -G Ninja && ninja -C build-release"
  fi
  while read -r package; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done < <(di_packages)
  [ ${#missing[@]} -eq 0 ] && return 0
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || di_die "these packages are missing, you are not root and there is no sudo: ${missing[*]}"
    sudo=(sudo)
  fi
  di_say "installing ${#missing[@]} packages: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq || di_die "apt-get update failed; see its message above"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    di_die "apt could not install: ${missing[*]}"
}

di_build() {
  local variant=$1; shift
  local dir=$di_root/build-$variant options=()
  case $variant in
    release) ;;
    asan) options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1" -DDI_SANITIZE=address,undefined -DDI_CUDA=OFF) ;;
    tsan) options=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1" -DDI_SANITIZE=thread -DDI_CUDA=OFF) ;;
    cuda) options=(-DDI_CUDA=ON) ;;
    *) di_die "unknown variant '$variant'; there are: release asan tsan cuda" ;;
  esac
  export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/di-ccache} CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-3G}
  # Objects of one checkout serve another one: paths inside the tree are stored relative to it.
  export CCACHE_BASEDIR=$di_root CCACHE_NOHASHDIR=1
  cmake -S "$di_root" -B "$dir" -G Ninja "${options[@]}" >"$dir.configure.log" 2>&1 ||
    { tail -20 "$dir.configure.log" >&2; di_die "cmake failed; the whole log is $dir.configure.log"; }
  cmake --build "$dir" --parallel "${DI_JOBS:-$(nproc)}" ${1:+--target "$@"}
}
