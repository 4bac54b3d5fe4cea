"""Compares what one recorded backward predicts of every loss scale with what running each scale shows.

    python benchmarks/scale_truth.py

For five models: the highest power of two that does not overflow, predicted and found by running 2^0 to 2^24;
and at each of those scales the share of low-precision gradient elements that become zero, predicted from the
one recording and counted. Prints the largest difference of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.facts.trace import Pass
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.gradients import compare_gradients
from ampdoctor.probe.passes.one_pass import run_pass
from ampdoctor.probe.passes.precision import candidate
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from ampdoctor.probe.watch.observer import Observer
from ampdoctor.scales.powers_of_two import ceiling_of, gradient_tensors, limiting, shares_zeroed

SCALES = range(25)


@dataclass(frozen=True)
class Truth:
    """One model's comparison. Exponents of powers of two."""

    name: str
    recorded_at: int
    predicted_ceiling: int
    """Capped at the highest scale that was run."""
    true_ceiling: int
    """The highest scale run at which nothing overflows."""
    largest_difference: float
    """Of the predicted and the counted share of zeroed elements, over the scales that do not overflow."""
    worst_scale: int
    largest_share: float
    """The largest share counted, to judge the difference by."""


def compare(name: str, workload: Workload, loss_scale: float) -> Truth:
    """What the recording at ``loss_scale`` predicts, next to what running every scale shows."""
    trace = probe(workload, Plan(loss_scale=loss_scale, search_scale=False))
    recorded = next(p for p in trace.passes if p.role == "candidate")
    reference = next(p for p in trace.passes if p.role == "reference")
    tensors = gradient_tensors(recorded, reference)
    shares = shares_zeroed(tensors)
    first = limiting(tensors)
    assert first is not None
    true_ceiling, worst, worst_at, largest = -1, 0.0, 0, 0.0
    for exponent in SCALES:
        run = _run(workload, recorded, 2.0**exponent)
        if not _is_finite(run):
            break
        true_ceiling = exponent
        rounding = [t for t in gradient_tensors(run, reference) if t.rounds]
        nonzero = sum(t.nonzero for t in rounding)
        kept = sum(min(t.nonzero, t.stats.numel - t.stats.zeros) for t in rounding)
        share = 1 - kept / nonzero
        largest = max(largest, share)
        difference = abs(share - shares[exponent])
        if difference > worst:
            worst, worst_at = difference, exponent
    ceiling = min(ceiling_of(first.absmax, first.fmt), SCALES[-1])
    recorded_at = math.frexp(loss_scale)[1] - 1
    return Truth(name, recorded_at, ceiling, true_ceiling, worst, worst_at, largest)


def _run(workload: Workload, recorded: Pass, loss_scale: float) -> Pass:
    """The candidate at another scale: its sites and nothing else."""
    precision = candidate(Plan(), torch.device("cpu"), loss_scale)
    run = run_pass(
        workload, workload.batches[0], precision, 0,
        Observer,
    )  # fmt: skip
    gradients = compare_gradients(run.gradients, loss_scale, {})
    return replace(recorded, loss_scale=loss_scale, sites=run.observer.records(), parameters=gradients)


def _is_finite(run: Pass) -> bool:
    backward = (r.stats.is_finite for r in run.sites if r.site.phase == "backward")
    return all(backward) and all(p.nan == p.inf == 0 for p in run.parameters)


def workload(model: nn.Module, batch: Any, loss: Callable[[nn.Module, Any], Tensor]) -> Workload:
    """A workload of one batch."""
    return Workload("benchmark", model, (batch,), loss)


def deep_tanh() -> Workload:
    """Twelve small tanh layers: the gradient shrinks by a constant factor a layer."""
    layers = [m for _ in range(12) for m in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.6)
    return workload(model, (torch.randn(16, 32), torch.randn(16, 4)), _mse)


def convolutional() -> Workload:
    """Convolutions with BatchNorm and a mean over all pixels."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return workload(model, (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))), _cross_entropy)


class SmallBeforeNorm(nn.Module):
    """Small activations before a LayerNorm: their gradients are far larger than the parameters'."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)
        with torch.no_grad():
            self.inner.weight.mul_(1e-3)
            self.inner.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, 8]."""
        out: Tensor = self.head(self.norm(self.inner(x)))
        return out


def small_before_norm() -> Workload:
    """See SmallBeforeNorm."""
    return workload(SmallBeforeNorm(), (torch.randn(32, 32), torch.randint(0, 8, (32,))), _cross_entropy)


def gpt2() -> Workload:
    """Two blocks of GPT-2 on random tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=512, n_positions=64)
    ids = torch.randint(0, 512, (4, 32))
    return workload(
        GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}, lambda model, batch: model(**batch).loss
    )


def recurrent() -> Workload:
    """An LSTM over sixteen steps, with a loss of 1e-3."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 24, batch_first=True), nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.lstm(x)[0][:, -1])
            return out

    return workload(
        Net(),
        (torch.randn(6, 16, 8), torch.randint(0, 3, (6,))),
        lambda model, batch: 1e-3 * _cross_entropy(model, batch),
    )


def _mse(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]).float(), batch[1])


def _cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


MODELS: dict[str, tuple[Callable[[], Workload], float]] = {
    "deep tanh": (deep_tanh, 65536.0),
    "convolutions": (convolutional, 4096.0),
    "small before norm": (small_before_norm, 256.0),
    "GPT-2": (gpt2, 4096.0),
    "LSTM": (recurrent, 65536.0),
}
"""Name -> (its workload, the loss scale of the one recording)."""


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    print(f"{'model':20}{'recorded':>9}{'ceiling':>9}{'true':>6}{'max share':>11}{'max diff':>10}{'at':>6}")
    for name, (build, loss_scale) in MODELS.items():
        torch.manual_seed(0)
        t = compare(name, build(), loss_scale)
        print(
            f"{name:20}{f'2^{t.recorded_at}':>9}{f'2^{t.predicted_ceiling}':>9}{f'2^{t.true_ceiling}':>6}"
            f"{t.largest_share:>11.2%}{t.largest_difference:>10.2%}{f'2^{t.worst_scale}':>6}"
        )


if __name__ == "__main__":
    main()
