#!/usr/bin/env python3
"""The numbers of fixtures/real/smollm2.json again, with rotary frequencies in full precision.

generate.py of the fixtures says `model.to(torch.bfloat16).float()` to round the weights, which rounds the buffer
`rotary_emb.inv_freq` too. So its numbers are those of a slightly different model: the loss of the text by 8e-5, logits
by up to 2e-2, losses of the fine-tune by 5e-4. This computes what the folder that `finetune import` makes really gives,
in double precision; tests/apps/finetune/real_model_test.cpp holds the engine to it.

    v/bin/python tests/peers/real_model_numbers.py FOLDER ../shared/fixtures/real/smollm2.json
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

folder, golden = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())


def nll_sum(model, ids, labels):
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), ignore_index=-100, reduction="sum")


def finetune_loss(model, rows, tokens):
    return sum(nll_sum(model, row["ids"], row["labels"]) for row in rows) / tokens


text = golden["text"]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
with torch.no_grad():
    print("nll_sum", repr(nll_sum(model, text["ids"], text["ids"]).item()))
    last = model(torch.tensor([text["ids"][:64]])).logits[0, -1]
top = last.topk(10)
print("top10", top.indices.tolist(), top.values.tolist())

setting = golden["finetune"]
rows, tokens = setting["rows"], setting["label_tokens"]
optimizer = torch.optim.AdamW(
    [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": setting["weight_decay"]},
     {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
    lr=setting["learning_rate"], betas=setting["betas"], eps=setting["eps"])
model.train()
for _ in setting["steps"]:
    total = 0.0
    for row in rows:
        loss = nll_sum(model, row["ids"], row["labels"]) / tokens
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), setting["max_grad_norm"])
    print("step", repr(total), repr(norm.item()), flush=True)
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    print("afterwards", finetune_loss(model, rows, tokens).item())
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    print("afterwards, rounded to bf16", finetune_loss(model, rows, tokens).item())
