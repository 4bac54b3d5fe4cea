"""What is asked of a process in which CUDA is host memory, beyond what a scan says: each gives plain data."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from asked import scenario
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fake_pass
import host_cuda
from ampdoctor.api.script_run import Examiner, Wanted
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.live.recorder import Recorder
from ampdoctor.live.watch import LoopWatch
from ampdoctor.load.workload import Workload
from ampdoctor.probe.births import drift
from ampdoctor.probe.births.rerun import rerun_in_float64
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe


def scanned(model: nn.Module, device: str) -> Any:
    x = torch.ones(4, 8, requires_grad=True)
    return probe(Workload("test", model, (x,), lambda m, x: m(x)), Plan(device=device, loss_scale=1.0))


# -- random generators

DRAWN: list[list[float]] = []


class Draws(nn.Module):
    """Draws on one device, wherever the rest runs; normal numbers that are no FP16 come before a dropout."""

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        noise = torch.zeros(8, dtype=torch.float16, device=self.device or x.device).normal_(0.0, 1e6)
        kept = nn.functional.dropout(torch.ones_like(noise, dtype=torch.float32))
        DRAWN.append(kept.tolist())
        return (h * kept.to(h.device)).float().mean() + noise.to(h.device).float().nan_to_num(
            0, 0, 0
        ).sum() * 0


def first_draws(seed: int, device: str = "cuda:0") -> list[list[float]]:
    """What the device draws next, and what it must, if it was seeded so and has drawn nothing since."""
    expected = torch.rand(3, generator=torch.Generator().manual_seed(seed))
    return [torch.rand(3, device=device).tolist(), expected.tolist()]


@scenario
def cuda_starts_with_the_scan() -> Any:
    torch.manual_seed(5)
    assert not torch.cuda.is_initialized()
    scanned(Draws(), "cuda")
    return first_draws(5)


@scenario
def cuda_starts_in_a_pass_on_the_host() -> Any:
    torch.manual_seed(5)
    scanned(Draws("cuda:1"), "cpu")
    assert torch.cuda.is_initialized()
    return first_draws(5, "cuda:1")


@scenario
def cuda_starts_after_the_scan() -> Any:
    torch.manual_seed(5)
    scanned(Draws(), "cpu")
    assert not torch.cuda.is_initialized()
    return first_draws(5)


@scenario
def generators_after_a_scan() -> Any:
    generators = (torch.default_generator, *torch.cuda.default_generators)
    model = Draws()
    torch.manual_seed(5)
    torch.rand(1, device="cuda:0"), torch.rand(2, device="cuda:1"), torch.rand(3)
    before = [g.get_state() for g in generators]
    scanned(model, "cuda")
    return [torch.equal(b, g.get_state()) for b, g in zip(before, generators, strict=True)]


@scenario
def draws_of_every_pass() -> Any:
    """[births, what was drawn in each pass]: a second look runs the op of a birth once more."""
    DRAWN.clear()
    trace = scanned(Draws(), "cuda")
    return [[b.site.op for b in trace.births], list(DRAWN)]


# -- memory that runs out: more of it in ``memory``


@scenario
def memory_in_a_rerun() -> Any:
    """What an op gives in float64 when the device's memory runs out at each op of that."""
    a = torch.full((2, 2), 300.0, dtype=torch.float16, device="cuda")
    exact = []
    for op in range(4):
        host_cuda.run_out_at(op)
        given = rerun_in_float64(torch.ops.aten.mm.default, (a, a), {}, 0, ())
        exact.append(None if given is None else [str(given.dtype), str(given.device), given[0, 0].item()])
    return exact


# -- waiting


@scenario
def passes_without_values() -> Any:
    return fake_pass.all_passes("cuda")


@scenario
def sampled_passes_without_values() -> Any:
    """Those of the search for the op at which values part from FP32's."""
    return fake_pass.all_passes("cuda", drift._Sampled)


# -- attention


class Attends(nn.Module):
    def __init__(self, overflows: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 1)
        self.overflows = overflows

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        x = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8)
        x = self.head(x)
        return (x.half() * 1e7 if self.overflows else x).float().mean()


def attended(half: int, single: int, overflows: bool) -> Any:
    """Verdict, births, and of each pass the sites in the lines of attention."""
    host_cuda.ATTENTION.update({torch.float16: half, torch.float32: single})
    trace = probe(
        Workload("test", Attends(overflows), (torch.randn(2, 5, 8),), lambda m, x: m(x)),
        Plan(device="cuda", loss_scale=1.0),
    )
    sites = {
        done.role: [[r.site.phase, r.site.op, r.site.output] for r in done.sites if "attention" in r.site.op]
        for done in trace.passes
    }
    return {
        "verdict": diagnose(trace).verdict,
        "births": [birth.site.op for birth in trace.births],
        "sites": sites,
    }


@scenario
def other_attention_kernels() -> Any:
    return attended(host_cuda.FLASH, host_cuda.EFFICIENT, False)


@scenario
def attention_next_to_an_overflow() -> Any:
    return attended(host_cuda.EFFICIENT, host_cuda.EFFICIENT, True)


@scenario
def attention_next_to_its_formula() -> Any:
    return attended(host_cuda.FLASH, 0, False)


@scenario
def overflow_behind_attention_next_to_its_formula() -> Any:
    return attended(host_cuda.FLASH, 0, True)


class AllLookAtOne(nn.Module):
    """Every query attends to the first key alone, so that the gradients of the five add up in its value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.v = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        v, k = (t.view(2, 5, 2, 4).transpose(1, 2) for t in (self.v(x), x.half() * 10))
        y = nn.functional.scaled_dot_product_attention(torch.full_like(k, 10), k, v)
        return (y.float() * 1000).sum()


@scenario
def overflow_in_attention_itself() -> Any:
    """At a loss scale of 16: 5 times 16,000. With the kernels of the candidate and of the reference: verdict,
    place, and the value it should have had."""
    x = torch.full((2, 5, 8), -1.0)
    x[:, 0] = 1.0
    answers = []
    for half, single in ((host_cuda.FLASH, host_cuda.FLASH), (host_cuda.FLASH, 0), (host_cuda.EFFICIENT, 0)):
        host_cuda.ATTENTION.update({torch.float16: half, torch.float32: single})
        work = Workload("test", AllLookAtOne(), (x,), lambda m, x: m(x))
        trace = probe(work, Plan(device="cuda", loss_scale=16.0))
        report, births = diagnose(trace), [b for b in trace.births if b.site is not None]
        fault = report.first_fault
        source = fault.source if fault is not None else None
        answers.append(
            [
                report.verdict,
                fault and [fault.phase, fault.module, fault.op, source and source.text],
                [
                    [b.site.op, b.rerun, b.exact_value, b.reference, b.reference_value]
                    for b in births
                    if b.site
                ],
                report.loss_scale.ceiling,
                [f.code for f in report.findings if f.severity == "error"],
            ]
        )
    return answers


# -- a model on two devices


class Split(nn.Module):
    """Its second half on another device, where the fault lies."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = first, second
        self.body, self.head = nn.Linear(8, 8).to(first), nn.Linear(8, 1).to(second)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.to(self.first))).to(self.second)
        h = h * 1e5 * 1e-5
        return self.head(h).float().mean()


def split(device: str, first: str, second: str) -> Any:
    work = Workload("test", Split(first, second), (torch.ones(4, 8),), lambda m, x: m(x))
    trace = probe(work, Plan(device=device, loss_scale=1.0))
    fault = diagnose(trace).first_fault
    told = None
    if fault is not None and fault.source is not None:
        told = [fault.phase, fault.module, fault.op, fault.source.text]
    placed = [str(p.device) for p in work.model.parameters()]
    return {"verdict": diagnose(trace).verdict, "fault": told, "placed": placed}


@scenario
def two_devices() -> Any:
    return [split("cuda", "cuda:0", "cuda:1"), split("cpu", "cpu", "cpu")]


# -- a loop that is watched


class Waits(TorchDispatchMode):
    """Counts the numbers that the host reads from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        to_host = func is torch.ops.aten._to_copy.default and str((kwargs or {}).get("device")) == "cpu"
        if (func is torch.ops.aten._local_scalar_dense.default or to_host) and args[0].device.type == "cuda":
            self.found += 1
        return func(*args, **(kwargs or {}))


class ScaledSGD(torch.optim.SGD):
    """Skips as fused optimizers do: on the device, by a product with ``found_inf``."""

    _step_supports_amp_scaling = True
    grad_scale: Tensor
    found_inf: Tensor

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                step = (parameter.grad / self.grad_scale).nan_to_num(0.0, 0.0, 0.0) * (1 - self.found_inf)
                parameter.sub_(self.param_groups[0]["lr"] * step)


def waits(optimizer_type: Any, watched: bool) -> dict[str, Any]:
    """How often the host waits in each of six steps, and which of them are skipped: the fourth is."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to("cuda")
    optimizer, scaler = optimizer_type(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda", 1024.0)
    x = torch.randn(3, 4).to("cuda")
    counts = []
    recorder = Recorder("loop.py")
    examiner = Examiner(recorder, Wanted(), Policy())
    with LoopWatch(recorder, examiner.capture) if watched else nullcontext():
        for step in range(6):
            with Waits() as mode:
                optimizer.zero_grad()
                loss = model(x * (float("inf") if step == 3 else 1.0)).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            counts.append(mode.found)
    timeline = recorder.trace().timeline
    return {
        "waits": counts,
        "skipped": [moment.skipped for moment in timeline],
        "finite": bool(model.weight.isfinite().all()),
    }


@scenario
def waits_of_a_watched_loop() -> Any:
    return [
        {name: waits(kind, watched) for name, kind in (("fused", ScaledSGD), ("plain", torch.optim.SGD))}
        for watched in (False, True)
    ]
