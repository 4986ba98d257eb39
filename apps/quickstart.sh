#!/usr/bin/env bash
# From a fresh clone to a fine-tuned model: installs what is missing, builds, gets SmolLM2-135M-Instruct, teaches it
# what apps/finetune/examples/quickstart.jsonl says, and prints an answer before and after.
#
#   apps/quickstart.sh                  downloads 98 MB; without a network it takes a tiny random model from tests/data
#   apps/quickstart.sh --model DIR      takes a Hugging Face folder instead
#   apps/quickstart.sh --prompt TEXT    asks this instead (the user's words, without markers)
#
# May be run again: what is built, downloaded and imported stays, training starts anew. Works in build/quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."

model="" question="Who are you, and what do you do?"
while [ $# -gt 0 ]; do
  case $1 in
    --model=* | --prompt=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --model) model=${2:?--model needs a folder}; shift 2 ;;
    --prompt) question=${2:?--prompt needs a text}; shift 2 ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
  esac
done

work=build/quickstart
finetune=build/release/bin/finetune
settings=(--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_train_epochs 4 --learning_rate 1e-4
  --warmup_steps 2 --max_seq_length 256)

say() { printf '\n== %s\n' "$*"; }

say "Installing what is missing"
apps/install_packages.sh

say "Building finetune (build/release)"
mkdir -p "$work"
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
cmake --preset release "${launcher[@]}" >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
cmake --build build/release --target finetune -j "$(nproc)"

# A random model of two layers, whose tokens are bytes: it can learn the data by heart, and nothing else.
tiny_model() {
  model=$work/tiny
  rm -rf "$model"
  mkdir -p "$model"
  cp tests/data/models/llama_tied/{config.json,generation_config.json,model.safetensors} \
    tests/data/tokenizers/bytes_264/tokenizer.json "$model"
  question="Who are you?"  # it cannot make sense of words that it has not seen
  settings=(--per_device_train_batch_size 4 --num_train_epochs 40 --learning_rate 5e-3 --warmup_steps 10
    --lr_scheduler_type cosine --compute_dtype fp32 --max_seq_length 512 --logging_steps 50)
}

if [ -z "$model" ]; then
  say "Getting SmolLM2-135M-Instruct"
  if gguf=$(apps/fetch_smollm2.sh); then
    model=$work/smollm2
    # The import makes its folder whole or not at all, so a folder that is there is done.
    [ -f "$model/config.json" ] || "$finetune" import "$gguf" --output "$model"
  else
    echo "Going on with a tiny random model from tests/data: the path is the same, the answers are not worth much."
    tiny_model
  fi
fi

start=$SECONDS
prompt=$'<|im_start|>user\n'$question$'<|im_end|>\n<|im_start|>assistant\n'
answer() { "$finetune" generate --model "$1" --prompt "$prompt" --max_new_tokens 60; }

say "Asking before: $question"
before=$(answer "$model")
echo "$before"

say "Training on apps/finetune/examples/quickstart.jsonl"
rm -rf "$work/trained"
"$finetune" train --model "$model" --data apps/finetune/examples/quickstart.jsonl --output "$work/trained" \
  "${settings[@]}"

say "Asking after: $question"
after=$(answer "$work/trained")
echo "$after"

say "Done in $((SECONDS - start)) s (building and download apart)"
printf 'Before:  %s\n\nAfter:   %s\n\n' "${before#"$prompt"}" "${after#"$prompt"}"
echo "The trained model lies in $work/trained (a Hugging Face folder), its events in $work/trained/events.jsonl."
