#!/usr/bin/env bash
# Installs what is missing, builds every preset and runs the tests. Stops at the first stage that fails.
#
#   tests/run.sh             everything but the tests labelled `nightly`
#   tests/run.sh --quick     release only
#   tests/run.sh --only A,B  these stages only
#   tests/run.sh --nightly   the nightly ones too
#   tests/run.sh --tidy      clang-tidy over the tree too (slow)
#
# Stages:  release   all tests
#          kill      30 runs killed at random moments, and resumed (tests/kill.sh)
#          checks    clang-format
#          clang     reads all, for its thread safety analysis
#          fuzz      each fuzzer for 12 seconds (tests/fuzz.sh); with --nightly, or asked for by --only
#          debug     all tests under ASan and UBSan
#          tsan      the tests labelled `concurrency` under ThreadSanitizer
#          eigen     tests of the linear layers, with Eigen in place of oneDNN
#          cuda      builds with the CUDA toolkit, where there is one, and starts the tests of gpu/cuda
#
# Needs a network for packages and for the real model (apps/fetch_smollm2.sh) only; without, the tests of that model
# are skipped and counted. Writes under build/ and the model's cache.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD

quick=no nightly=no tidy=no only=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=yes ;;
    --only) only=${2:-} && shift ;;
    --nightly) nightly=yes ;;
    --tidy) tidy=yes ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done

jobs=$(nproc)
logs=$root/build/logs
temporary=$root/build/tmp
export SLUICE_FIXTURES=${SLUICE_FIXTURES:-$root/tests/data}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$root  # presets and checkouts share what they compile alike

# ---- stages -----------------------------------------------------------------------------------------------------

summary=()
total_start=$SECONDS

print_summary() {
  printf '\nStages (%d min %d s in all):\n' $(((SECONDS - total_start) / 60)) $(((SECONDS - total_start) % 60))
  printf '  %s\n' "${summary[@]}"
}

# stage NAME COMMAND...: runs it, notes its time; ends the script if it fails. A command that returns 77 was skipped,
# and has left the reason in $skip_reason.
stage() {
  local name=$1 start=$SECONDS status=0
  shift
  [ -z "$only" ] || [[ ,$only, = *,$name,* ]] || return 0
  printf '\n==== %s\n' "$name"
  "$@" || status=$?
  case $status in
    0) summary+=("$(printf '%-9s ok       %4d s' "$name" $((SECONDS - start)))") ;;
    77) summary+=("$(printf '%-9s skipped  %s' "$name" "$skip_reason")"); echo "skipped: $skip_reason" ;;
    *)
      summary+=("$(printf '%-9s FAILED   %4d s' "$name" $((SECONDS - start)))")
      print_summary
      # What failed, in ctest's own closing words where it was a test.
      [ -f "$logs/$name.ctest" ] && sed -n '/% tests passed/,$p' "$logs/$name.ctest"
      exit 1
      ;;
  esac
}

configure() {  # FOLDER PRESET [OPTION...]: into build/FOLDER
  local folder=$1 preset=$2 launcher=()
  shift 2
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
  cmake --preset "$preset" -B "build/$folder" "${launcher[@]}" "$@" >"$logs/$folder.configure" 2>&1 || {
    cat "$logs/$folder.configure"
    return 1
  }
}

build() {  # FOLDER [TARGET...]
  local folder=$1 targets=()
  shift
  [ $# -gt 0 ] && targets=(--target "$@")
  cmake --build "build/$folder" -j "$jobs" "${targets[@]}"
}

# Runs tests of build/FOLDER; what they printed is kept as $logs/STAGE.tests, ctest's own words as $logs/STAGE.ctest.
run_tests() {  # STAGE FOLDER CTEST-OPTION...
  local stage=$1 folder=$2 status left
  shift 2
  mkdir -p "$temporary"
  TMPDIR=$temporary ctest --test-dir "build/$folder" -j "$jobs" --output-on-failure --no-tests=error "$@" |
    tee "$logs/$stage.ctest" | sed -u '/^ *Start  *[0-9]*: /d; / Passed  *[0-9.]* sec$/d'
  status=${PIPESTATUS[0]}
  cp "build/$folder/Testing/Temporary/LastTest.log" "$logs/$stage.tests" 2>/dev/null
  [ "$status" = 0 ] || return "$status"
  left=$(ls -A "$temporary")
  rm -rf "$temporary"
  [ -z "$left" ] || { echo "the tests left these behind in TMPDIR: $left"; return 1; }
}

# How many tests were skipped, and for which reasons.
print_skips() {  # STAGE
  local log=$logs/$1.tests
  [ -f "$log" ] || return 0
  echo "$1: $(grep -c '^\[  SKIPPED \].* ms)$' "$log") tests skipped"
  awk '/: Skipped$/ {getline reason; print "  " reason}' "$log" | sort | uniq -c | sort -rn
}

release() {
  configure release release && build release && run_tests release release -LE nightly
}

# Of real processes on a real disk.
kill_runs() {
  configure release release && build release finetune || return 1
  mkdir -p "$temporary"
  TMPDIR=$temporary tests/kill.sh 30 | tee "$logs/kill.counts"
  local status=${PIPESTATUS[0]}
  rmdir "$temporary" || status=1  # something was left
  return "$status"
}

nightly() {
  run_tests nightly release -L nightly
}

sources() { find engine io cpu_optim gpu apps tests bench -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'; }

# Formats differ from one version of clang-format to the next, so only Debian 12's is asked.
checks() {
  for script in .ci/run apps/*.sh tests/*.sh tests/device/*.sh; do bash -n "$script" || return 1; done
  local version
  version=$(clang-format --version 2>/dev/null | grep -o 'version [0-9]*')
  if [ "$version" != 'version 14' ]; then
    skip_reason="clang-format 14 is what the tree is formatted with; here is ${version:-none}"
    return 77
  fi
  sources | xargs clang-format --dry-run -Werror
}

# Parses every file and generates no code: the commands of a build, which then has nothing to link.
clang_compiles() {
  if ! command -v clang++ >/dev/null; then
    skip_reason="clang++ is missing (apt-get install clang)"
    return 77
  fi
  configure clang clang -DCMAKE_CXX_COMPILER_LAUNCHER= || return 1
  (cd build/clang && ninja -t commands | grep -e ' -c [^ ]*\.cpp$' | sed 's/ -MD -MT [^ ]* -MF [^ ]*//' |
    xargs -d '\n' -n 1 -P "$jobs" sh -c)
}

fuzz() {
  if ! command -v clang++ >/dev/null; then
    skip_reason="clang++ is missing (apt-get install clang)"
    return 77
  fi
  tests/fuzz.sh 12
}

tidy() {
  configure clang clang && sources | grep '\.cpp$' | xargs -n 1 -P "$jobs" clang-tidy -p build/clang --quiet
}

# The real model is left to the release build: under ASan its steps take many minutes and show nothing new.
debug() {
  configure debug debug && build debug && (unset SLUICE_SMOLLM2_GGUF && run_tests debug debug -LE nightly)
}

tsan() {
  configure tsan tsan && build tsan concurrency_tests && run_tests tsan tsan -L concurrency -LE nightly
}

test_names() { find tests -name "$1" -exec basename -s .cpp {} \;; }

# Eigen serves the linear layers where oneDNN is missing.
eigen() {
  local targets
  targets=$(test_names '*linear*_test.cpp'; test_names '*matmul*_test.cpp')
  configure eigen release -DSLUICE_MATMUL=eigen && build eigen $targets &&
    run_tests eigen eigen -R "^($(echo $targets | tr ' ' '|'))\." -LE nightly
}

cuda() {
  local nvcc
  nvcc=$(command -v "${CUDACXX:-nvcc}" || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
  if [ -z "$nvcc" ]; then
    skip_reason="no CUDA toolkit (nvcc is neither on the PATH nor in /usr/local/cuda)"
    return 77
  fi
  local targets
  targets=$(test_names '*cuda*_test.cpp')
  CUDACXX=$nvcc configure cuda cuda && build cuda $targets finetune &&
    run_tests cuda cuda -R "^($(echo $targets | tr ' ' '|'))\."
}

# ---- the run ----------------------------------------------------------------------------------------------------

rm -rf "$logs" "$temporary"
mkdir -p "$logs"
apps/install_packages.sh --tests || exit 1
if [ -z "${SLUICE_SMOLLM2_GGUF:-}" ] && model=$(apps/fetch_smollm2.sh); then export SLUICE_SMOLLM2_GGUF=$model; fi

stage release release
[ $nightly = yes ] && stage nightly nightly
if [ $quick = no ]; then
  stage kill kill_runs
  stage checks checks
  stage clang clang_compiles
  [ $nightly = yes ] || [[ ,$only, = *,fuzz,* ]] && stage fuzz fuzz
  [ $tidy = yes ] && stage tidy tidy
  stage debug debug
  stage tsan tsan
  stage eigen eigen
  stage cuda cuda
fi

print_summary
echo
for name in release nightly debug tsan eigen cuda; do
  print_skips "$name"
done
[ ! -f "$logs/kill.counts" ] || tail -n 1 "$logs/kill.counts"
echo
[ ! -f "$logs/release.ctest" ] || sed -n '/% tests passed/,$p' "$logs/release.ctest"
