#!/usr/bin/env bash
# Builds the fuzzers and runs each, as many at a time as there are CPUs. Stops with 1 where one found something: the
# input is then in build/fuzz/findings, and belongs into tests/data/fuzz/NAME together with the fix.
#
#   tests/fuzz.sh [SECONDS [NAME...]]   600 seconds each, all of them
#
# What they learn is kept in build/fuzz/corpus, and the next run begins with it. Needs clang and its runtime
# (libclang-rt-14-dev).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-600}
shift
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(safetensors gguf tokenizer config manifest run_record data_rows)

export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
cmake --preset fuzz "${launcher[@]}" >/dev/null && cmake --build --preset fuzz -j "$(nproc)" -- --quiet || exit 1

fuzz=$PWD/build/fuzz
export fuzz seconds
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
rm -rf "$fuzz/seeds" && mkdir -p "$fuzz/findings" "$fuzz/logs" && "$fuzz/bin/fuzz_seeds" "$fuzz/seeds" || exit 1

# No input needs more memory than a small multiple of its size, so the limits are far above what is honest.
fuzz_one() {
  local corpora=("$fuzz/corpus/$1" "$fuzz/seeds/$1") dictionary=() log=$fuzz/logs/$1
  mkdir -p "${corpora[0]}"
  [ ! -d "tests/data/fuzz/$1" ] || corpora+=("tests/data/fuzz/$1")
  [ ! -f "tests/fuzz/$1.dict" ] || dictionary=("-dict=tests/fuzz/$1.dict")
  if ! "$fuzz/bin/fuzz_$1" -max_total_time="$seconds" -timeout=300 -rss_limit_mb=1024 -malloc_limit_mb=384 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="$fuzz/findings/$1-" "${dictionary[@]}" \
    "${corpora[@]}" >"$log" 2>&1; then
    echo "$1: FOUND something: ${log#"$PWD"/}" >&2
    grep -E 'ERROR|what\(\)|check failed|Test unit written|SUMMARY' "$log" >&2
    return 1
  fi
  echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, no finding"
}
export -f fuzz_one
printf '%s\n' "${names[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {}' || exit 1
