"""Prints what a fully recorded FP16 pass costs, as a ratio to a plain FP32 step of the same model.

GPT-2 with 6 layers, d=384 and its own vocabulary, batch 4 x 128, forward and backward, on the CPU with CUDA
emulated. Plain steps and recorded passes take turns in one process, so that a busy machine slows both;
medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.watch.observer import Observer

BATCH, LENGTH, VOCABULARY = 4, 128, 50257


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    """The model and one batch, both random."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=384,
        n_layer=6,
        n_head=6,
        bos_token_id=1,
        eos_token_id=2,
    )
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens}


def step(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    loss = model(**batch).loss
    assert isinstance(loss, Tensor)
    return loss


def plain(model: nn.Module, batch: dict[str, Tensor]) -> None:
    """One FP32 step as a training loop makes it, without the optimizer."""
    model.zero_grad(set_to_none=True)
    step(model, batch).backward()  # type: ignore[no-untyped-call]


def recorded(workload: Workload, plan: Plan) -> int:
    """One candidate pass with every statistic of every op; returns how many tensors it recorded."""
    precision = candidate(plan, torch.device("cpu"), plan.loss_scale)
    run = run_pass(workload, workload.batches[0], precision, plan.seed, Observer)
    assert run.raised is None and run.backward_ran
    return len(run.observer.records())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-v", "--verbose", action="store_true", help="print the medians as well")
    options = parser.parse_args()
    model, batch = build()
    workload = Workload("gpt2", model, (batch,), step)
    plan = Plan(device="cpu", loss_scale=1024.0)
    times: dict[str, list[float]] = {"plain": [], "recorded": []}
    tensors = 0
    for turn in range(options.rounds + 1):
        for name in times:
            started = time.perf_counter()
            if name == "plain":
                plain(model, batch)
            else:
                tensors = recorded(workload, plan)
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - started)
    median = {name: statistics.median(values) for name, values in times.items()}
    if options.verbose:
        print(f"plain FP32 step {median['plain']:.3f} s, recorded FP16 pass {median['recorded']:.3f} s")
        print(f"{tensors} tensors recorded, {torch.get_num_threads()} threads")
    print(f"{median['recorded'] / median['plain']:.2f}")


if __name__ == "__main__":
    main()
