#!/usr/bin/env bash
# Runs the tests and benches of gpu/cuda on a machine with a GPU, from a build made elsewhere:
#
#   tests/device/run.sh [BUILD [OUT]]     BUILD: build/cuda, with bin/ in it. OUT: where the table and logs go.
#
# A build is relocatable: it needs the CUDA runtime libraries of its major version and, from this checkout, tests/data.
# Prints "no CUDA device" and ends well where there is none; ends with 1 if a program failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=${1:-build/cuda}
out=${2:-${OUT:-build/device}}
export SLUICE_FIXTURES=${SLUICE_FIXTURES:-$PWD/tests/data}
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64

if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  echo "no CUDA device"
  exit 0
fi
if [ ! -d "$build/bin" ]; then
  echo "No build in $build: make one with cmake --preset cuda && cmake --build build/cuda." >&2
  exit 2
fi
mkdir -p "$out"
table=$out/table.txt
failed=0

row() { printf '%-32s %-9s %7s %7s %7s %8s\n' "$@" | tee -a "$table"; }

count() { grep -c "$1" "$2" || true; }

# Runs a program with a time limit, and adds its row.
run_program() {  # PROGRAM
  local name log start=$SECONDS status=0 verdict=ok
  name=$(basename "$1")
  log=$out/$name.log
  if ldd "$1" | grep -q 'not found'; then
    ldd "$1" | grep 'not found' >"$log"
    status=127
  else
    timeout "${SLUICE_DEVICE_TIMEOUT:-120}" "$1" >"$log" 2>&1 || status=$?
  fi
  case $status in
    0) ;;
    124) verdict=TIMEOUT ;;
    127) verdict=NO-LIB ;;
    *) verdict="FAILED-$status" ;;
  esac
  row "$name" "$verdict" "$(count '^\[       OK \]' "$log")" "$(count '^\[  FAILED  \].* ms)$' "$log")" \
    "$(count '^\[  SKIPPED \].* ms)$' "$log")" "$((SECONDS - start)) s"
  if [ $status != 0 ]; then
    failed=1
    tail -n 30 "$log"
  fi
}

{ nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "unknown GPU"; } |
  tee "$table"
row program verdict passed failed skipped time
shopt -s nullglob
programs=("$build"/bin/*cuda*_test "$build"/bin/bench_*cuda*)
[ ${#programs[@]} -gt 0 ] || { echo "No CUDA test or bench in $build/bin." >&2; exit 2; }
for program in "${programs[@]}"; do run_program "$program"; done
for log in "$out"/bench_*.log; do
  echo "---- $(basename "$log" .log)" | tee -a "$table"
  tee -a "$table" <"$log"
done
exit $failed
