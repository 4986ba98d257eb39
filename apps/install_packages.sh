#!/usr/bin/env bash
# Installs what Sluice needs to build, on Debian 12 or Ubuntu 24.04 and newer; `--tests` adds what only tests/run.sh
# needs. Does nothing where all is there. Without root it says what is missing and how to get it.
set -euo pipefail

build_packages=(g++ cmake ninja-build pkg-config curl ca-certificates unzip
  libhwy-dev libdnnl-dev libeigen3-dev libtbb-dev libpcre2-dev libicu-dev libcxxopts-dev nlohmann-json3-dev
  libxxhash-dev liblzma-dev liburing-dev libgtest-dev libgmock-dev libbenchmark-dev)
test_packages=(clang libclang-rt-dev clang-format git xz-utils ccache)

packages=("${build_packages[@]}")
[ "${1:-}" = --tests ] && packages+=("${test_packages[@]}")

# What a command proves to be there need not be Debian's.
is_there() {
  case $1 in
    g++ | cmake | curl | unzip | clang | clang-format | git | ccache) command -v "$1" >/dev/null && return ;;
    ninja-build) command -v ninja >/dev/null && return ;;
    pkg-config) command -v pkg-config >/dev/null && return ;;
    xz-utils) command -v xz >/dev/null && return ;;
  esac
  command -v dpkg-query >/dev/null && [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

list_missing() {
  missing=()
  for package in "${packages[@]}"; do is_there "$package" || missing+=("$package"); done
}

# CMake 3.25 is in Debian 12 and in Ubuntu from 23.04 on; Ubuntu 22.04 has 3.22.
check_cmake() {
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  if [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)" != 3.25 ]; then
    echo "CMake $version is too old: Sluice needs 3.25. Take Debian 12, Ubuntu 24.04 or newer, or a CMake from" \
      "https://cmake.org/download on the PATH." >&2
    exit 1
  fi
}

list_missing
if [ ${#missing[@]} -eq 0 ]; then
  check_cmake
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "These packages (by their Debian names) may be missing, and there is no apt-get to install them:" >&2
  echo "  ${missing[*]}" >&2
  echo "Install them with this system's tool; going on with what is there." >&2
  check_cmake
  exit 0
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null && [ ! -t 0 ]; then
    echo "Packages are missing and this is not root. Have an administrator run:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq >&2 || echo "apt-get update failed (no network?); trying with the lists at hand." >&2
if ! "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2; then
  list_missing
  echo "Could not install: ${missing[*]}. Is there a network, and is this Debian 12 or Ubuntu 24.04 or newer?" >&2
  exit 1
fi
check_cmake
