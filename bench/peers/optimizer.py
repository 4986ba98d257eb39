#!/usr/bin/env python3
"""AdamW of PyTorch and DeepSpeed against bench_optimizer, on one machine, in turn.

    optimizer.py BUILD/bin/bench_optimizer [--parameters N] [--cycles N] [--rounds N]

Needs torch, deepspeed and ninja (not part of CI). Best seconds per 1B parameters, all threads:

  torch          fused AdamW: fp32 gradient in, fp32 weight out (28 bytes a parameter)
  deepspeed      CPUAdam, the same job
  deepspeed_job  what ZeRO-Offload does with it: the bf16 gradient is copied to fp32, a step, the fp32 weight is
                 copied to bf16 (deepspeed/runtime/zero/stage_1_and_2.py)

and `ratio NAME_vs_PEER R`: the peer's seconds over those of our format NAME, bf16 in and out; bare_fp32 is the
job of torch and deepspeed. Each cycle runs
every program once, as machines drift; the best of all cycles counts.
"""
import argparse
import os
import re
import subprocess
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch


def best_seconds(step, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times)


def parameter(size):
    weight = torch.nn.Parameter(torch.randn(size) * 0.02)
    weight.grad = torch.randn(size) * 1e-4
    return weight


def torch_fused(size, rounds):
    weight = parameter(size)
    optimizer = torch.optim.AdamW([weight], lr=1e-5, weight_decay=1e-2, fused=True)
    return best_seconds(optimizer.step, rounds)


def deepspeed_cpu_adam(size, rounds, whole_job):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    weight = parameter(size)
    optimizer = DeepSpeedCPUAdam([weight], lr=1e-5, weight_decay=1e-2, adamw_mode=True)
    gradient = weight.grad.to(torch.bfloat16)
    copy = weight.detach().to(torch.bfloat16)

    def job():
        weight.grad.copy_(gradient)
        optimizer.step()
        copy.copy_(weight.detach())

    return best_seconds(job if whole_job else optimizer.step, rounds)


def ours(program, size):
    # It may say that few rounds did not find the limit: only its seconds count here.
    text = subprocess.run([program, "--parameters", str(size), "--rounds", "2"], capture_output=True, text=True).stdout
    seconds = {}
    for name, _, value in re.findall(r"^(\w+)\s+(\d+) threads: ([\d.]+) s per 1B", text, re.MULTILINE):
        seconds[name] = float(value)  # the last one is with all threads
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--cycles", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    size, rounds = arguments.parameters, arguments.rounds
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    peers = {
        "torch": lambda: torch_fused(size, rounds),
        "deepspeed": lambda: deepspeed_cpu_adam(size, rounds, False),
        "deepspeed_job": lambda: deepspeed_cpu_adam(size, rounds, True),
    }
    own, theirs = {}, {}
    for _ in range(arguments.cycles):
        for name, seconds in ours(arguments.program, size).items():
            own[name] = min(seconds, own.get(name, seconds))
        for name, measure in peers.items():
            try:
                seconds = measure() * 1e9 / size
            except Exception as error:  # DeepSpeed compiles its kernel when it is first used
                print(f"no {name} here: {error}")
                continue
            theirs[name] = min(seconds, theirs.get(name, seconds))

    for name, seconds in {**own, **theirs}.items():
        print(f"{name:14} {seconds:.3f} s per 1B parameters")
    for peer, seconds in theirs.items():
        for name, own_seconds in own.items():
            print(f"ratio {name}_vs_{peer} {seconds / own_seconds:.3f}")


if __name__ == "__main__":
    main()
