#!/usr/bin/env python3
"""Does transformers see in a folder what `finetune` sees in it?

Loads FOLDER (an import, or the output of a training run) with AutoModelForCausalLM and AutoTokenizer, in float32 on
the CPU, and compares with `finetune tokenize`, `eval` and `generate` of the same folder:

  - every weight of the architecture is there, none is left over;
  - ids of the texts below, of the prompts and of the rows;
  - the summed loss of the fine-tune rows (labels: the answer and its end), and of two plain documents;
  - greedy continuations of the four prompts.

    python3 -m venv v && v/bin/pip install torch transformers==5.23.0
    v/bin/python tests/peers/check_export.py --finetune build/release/bin/finetune \\
        --golden ../shared/fixtures/real/smollm2.json FOLDER [FOLDER ...]

Not part of CI: it needs a gigabyte of packages. Exits 1 at the first thing that is not the same.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Losses are sums over a few dozen tokens, each after 30 layers in fp32.
RELATIVE_TOLERANCE = 1e-4
TEXTS = ["Hello, world!", "  two  spaces\tand a tab ", "", "ſtraße ﬁne — 漢字 🙂 e\u0301", "<|im_start|>user",
         "1234567890 1,000.5", "don't we'LL I'M", "a" * 300, "\u200bzero\u00a0width"]
DOCUMENTS = ["The quick brown fox jumps over the lazy dog.",
             "A tiered memory manager keeps data in the fastest memory that has room."]
NEW_TOKENS = 24


def run(arguments, text=None):
    done = subprocess.run(arguments, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def check(what, ours, theirs, same):
    print(f"  {'same' if same else 'NOT THE SAME':12}  {what}: finetune {ours}, transformers {theirs}")
    if not same:
        sys.exit(1)


def check_close(what, ours, theirs):
    print(f"  relative difference {abs(ours - theirs) / abs(theirs):.1e}")
    check(what, ours, theirs, abs(ours - theirs) <= RELATIVE_TOLERANCE * abs(theirs))


def nll_sum(model, ids, labels):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), ignore_index=-100, reduction="sum").item()


def evaluate(options, folder, rows):
    with tempfile.TemporaryDirectory() as temporary:
        data = pathlib.Path(temporary) / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return json.loads(run([options.finetune, "eval", "--model", folder, "--data", str(data), "--compute_dtype",
                               "fp32", "--json"]))


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    tied = set(getattr(model, "_tied_weights_keys", None) or [])
    missing = [key for key in info["missing_keys"] if key not in tied]
    wrong = {"missing": missing, **{key: list(info.get(key, [])) for key in ("unexpected_keys", "mismatched_keys")}}
    check("weights", "complete", wrong, not any(wrong.values()))
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def check_ids(options, folder, tokenizer, golden):
    texts = TEXTS + golden["text"]["text"].split("\n") + [row for entry in golden["generate"]
                                                          for row in entry["prompt"].split("\n")]
    lines = run([options.finetune, "tokenize", "--model", folder], "\n".join(texts) + "\n").split("\n")
    for text, line in zip(texts, lines, strict=False):
        ids = tokenizer(text)["input_ids"]
        if [int(word) for word in line.split()] != ids:
            check(f"ids of {text!r}", line, ids, False)
    check("ids", f"{len(texts)} texts", f"{len(texts)} texts", True)


def check_losses(options, folder, model, tokenizer, golden):
    rows, theirs, tokens = [], 0.0, 0
    for row in golden["finetune"]["rows"]:
        labelled = [i for i, label in enumerate(row["labels"]) if label != -100]
        begin, end = labelled[0], labelled[-1]  # the last one is the end token, which finetune puts itself
        rows.append({"prompt": tokenizer.decode(row["ids"][:begin]), "completion": tokenizer.decode(row["ids"][begin:end])})
        theirs += nll_sum(model, row["ids"], row["labels"])
        tokens += len(labelled)
    ours = evaluate(options, folder, rows)
    check("label tokens of the fine-tune rows", ours["tokens"], tokens, ours["tokens"] == tokens)
    check_close("loss of the fine-tune rows", ours["nll_sum"] / ours["tokens"], theirs / tokens)

    ids = [tokenizer(text)["input_ids"] for text in DOCUMENTS]
    ours = evaluate(options, folder, [{"text": text} for text in DOCUMENTS])
    check_close("loss of documents", ours["nll_sum"], sum(nll_sum(model, row, row) for row in ids))


def check_generation(options, folder, model, tokenizer, golden):
    prompts = [entry["prompt"] for entry in golden["generate"]]
    arguments = [word for prompt in prompts for word in ("--prompt", prompt)]
    ours = json.loads(run([options.finetune, "generate", "--model", folder, *arguments, "--max_new_tokens",
                           str(NEW_TOKENS), "--compute_dtype", "fp32", "--json"]))["results"]
    for prompt, result in zip(prompts, ours, strict=True):
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            out = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False)
        theirs = out[0, len(ids):].tolist()
        check("continuation", repr(tokenizer.decode(result["ids"])), repr(tokenizer.decode(theirs)), result["ids"] == theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--finetune", required=True, help="the program")
    parser.add_argument("--golden", required=True, help="fixtures/real/smollm2.json: rows, text and prompts")
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    options = parser.parse_args()
    golden = json.loads(pathlib.Path(options.golden).read_text())
    for folder in options.folders:
        print(folder)
        model, tokenizer = load(folder)
        check_ids(options, folder, tokenizer, golden)
        check_losses(options, folder, model, tokenizer, golden)
        check_generation(options, folder, model, tokenizer, golden)


if __name__ == "__main__":
    main()
