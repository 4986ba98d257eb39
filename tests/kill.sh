#!/usr/bin/env bash
# Kills `finetune train` (kill -9) at random moments, and judges each resume: it must end in the bits of a run that nobody
# disturbed.
#
#   tests/kill.sh N [--model DIR] [--steps N] [--finetune PROGRAM]
#
# N kills, and more until two thirds of N came after the first commit and a quarter between a first write and its header (at
# most 3 N); a run that ends before its kill does not count. Everything is on disk, and every step is saved. Without --model, a
# random one of eight layers, or where `finetune init` is missing the tiny one of tests/data. Prints one line for each kill that
# went wrong, and at the end:
#
#   kills N, after the first commit A, between a first write and its header B, bit-equal resumes C
#
# Fails unless all of the A were resumed bit-equal, the others began anew with the same bits, and A and B are enough. Works in
# a folder of its own under $TMPDIR (on the drive that is to be tried), and removes it.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
[ $# -gt 0 ] || usage
kills=$1 model="" steps=10 finetune=build/release/bin/finetune
[[ $kills =~ ^[0-9]+$ ]] || usage
shift
while [ $# -gt 0 ]; do
  case $1 in
    --model) model=${2:?}; shift 2 ;;
    --steps) steps=${2:?}; shift 2 ;;
    --finetune) finetune=${2:?}; shift 2 ;;
    *) usage ;;
  esac
done

work=$(mktemp -d "${TMPDIR:-/tmp}/sluice_kill_XXXXXX")
trap 'rm -rf "$work"' EXIT

make_model() {
  local source=tests/data/models/llama_tied tokenizer=tests/data/tokenizers/bytes_264/tokenizer.json
  model=$work/model
  if "$finetune" --help 2>/dev/null | grep -q '^  init '; then
    mkdir "$work/config"
    # Eight layers, some 3 million parameters: steps of tens of milliseconds, most of them writing.
    sed -e 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 8/' -e 's/"hidden_size": *[0-9]*/"hidden_size": 192/' \
      -e 's/"intermediate_size": *[0-9]*/"intermediate_size": 512/' -e 's/"head_dim": *[0-9]*,//' \
      "$source/config.json" >"$work/config/config.json"
    cp "$tokenizer" "$work/config"
    "$finetune" init --config "$work/config/config.json" --seed 1 --output "$model" >"$work/init.log" 2>&1 && return
    rm -rf "$model"
  fi
  mkdir "$model"
  cp "$source"/{config.json,generation_config.json,model.safetensors} "$tokenizer" "$model"
}
[ -n "$model" ] || make_model

train=("$finetune" train --model "$model" --data apps/finetune/examples/quickstart.jsonl --max_steps "$steps"
  --learning_rate 1e-4 --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_seq_length 128
  --spill_dir "$work/spill" --spill all --save_steps 1 --output)
hash_of() { sed -n 's/^state_hash //p' "$1"; }

"${train[@]}" "$work/undisturbed" >"$work/hash" 2>"$work/log" || { cat "$work/log"; exit 1; }
expected=$(hash_of "$work/hash")
start=$(date +%s%N)
rm -rf "$work/undisturbed"
"${train[@]}" "$work/undisturbed" >"$work/hash" 2>"$work/log"
duration=$(($(date +%s%N) - start))  # of a whole run, in ns
[ "$(hash_of "$work/hash")" = "$expected" ] || { echo "two undisturbed runs differ"; exit 1; }

# A slab has bytes that are newer than the newest header.
writing_now() {
  local header slab
  for header in "$work"/out/checkpoint/generation-*.manifest; do :; done  # the last by name
  [ -f "$header" ] || return 1
  for slab in "$work"/spill/sluice/state-*.slab; do [ "$slab" -nt "$header" ] && return 0; done
  return 1
}
mkfifo "$work/never"
exec 3<>"$work/never"
nap() { read -rt 0.003 -u 3 || true; }  # starts no process
running() { kill -0 "$pid" 2>/dev/null; }

done_kills=0 committed=0 writing=0 equal=0 failed=0
enough() { [ "$done_kills" -ge "$kills" ] && [ $((3 * committed)) -ge $((2 * kills)) ] && [ $((4 * writing)) -ge "$kills" ]; }
until enough || [ "$done_kills" -ge $((3 * kills)) ]; do
  rm -rf "$work/out"
  : >"$work/log"  # now, and not when the other process comes to it: steps are looked for there
  "${train[@]}" "$work/out" >"$work/hash" 2>"$work/log" &
  pid=$!
  # Some time after the start, or after any step; half of them soon after it began to be written.
  after=$((RANDOM % (steps + 1)))
  while [ "$after" -gt 0 ] && ! grep -q "^step $after/" "$work/log" && running; do nap; done
  range=$((duration / steps / 1000))
  if [ $((RANDOM % 2)) = 0 ]; then
    while [ "$after" -gt 0 ] && ! writing_now && running; do nap; done
    range=$((range / 8))
  fi
  delay=$(((RANDOM * 32768 + RANDOM) * range / (32768 * 32768)))  # µs
  sleep "$(printf '%d.%06d' $((delay / 1000000)) $((delay % 1000000)))"
  kill -9 "$pid" 2>/dev/null || true
  status=0
  wait "$pid" 2>/dev/null || status=$?
  [ "$status" = 137 ] || continue  # it had ended
  done_kills=$((done_kills + 1))
  option=()
  if compgen -G "$work/out/checkpoint/generation-*.manifest" >/dev/null; then
    committed=$((committed + 1))
    option=(--resume)
    if writing_now; then writing=$((writing + 1)); fi
  elif [ -f "$work/out/config.json" ]; then
    continue  # the result was there already, and the state gone
  fi
  if "${train[@]}" "$work/out" "${option[@]}" >"$work/hash" 2>"$work/log" && [ "$(hash_of "$work/hash")" = "$expected" ]; then
    [ ${#option[@]} -eq 0 ] || equal=$((equal + 1))
  else
    failed=$((failed + 1))
    echo "kill $done_kills, $delay us after step $after, ${option[*]:-begun anew}: $(tail -n 1 "$work/log"), $(cat "$work/hash")"
  fi
done
echo "kills $done_kills, after the first commit $committed, between a first write and its header $writing," \
  "bit-equal resumes $equal"
enough && [ "$failed" = 0 ] && [ "$equal" = "$committed" ]
