"""Whole probes: models that raise, that are interrupted, that have no gradients, and that are odd."""

from __future__ import annotations

import os
from datetime import date
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.facts.trace import Trace
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from probe_helpers import Calls, pass_of, records, traced, workload
from scan_models import X, linear, runs

# ---------------------------------------------------------------- without gradients


def test_forward_only() -> None:
    trace = traced(linear(), forward_only=True, loss=lambda m, x: {"out": m(x)})
    assert trace.environment.forward_only
    assert [(p.loss, p.backward_ran, p.parameters) for p in trace.passes] == [(None, False, ())] * 2
    assert records(pass_of(trace), phase="backward") == []


def test_no_parameter_requires_a_gradient() -> None:
    trace = traced(linear().requires_grad_(False))
    assert trace.environment.trainable_parameters == 0
    assert [(p.loss is None, p.backward_ran, p.parameters) for p in trace.passes] == [(False, False, ())] * 2


def test_a_loss_that_depends_on_no_parameter() -> None:
    trace = traced(linear(), loss=lambda m, x: m(x).detach().sum())
    assert trace.environment.trainable_parameters == 20
    assert [(p.backward_ran, p.parameters) for p in trace.passes] == [(False, ())] * 2


def test_a_parameter_that_takes_no_part_has_no_gradient() -> None:
    trace = traced(Calls(lambda self, x: self.used(x), used=linear(), unused=linear()))
    assert [p.name for p in pass_of(trace).parameters] == ["used.weight", "used.bias"]


# ---------------------------------------------------------------- weights and buffers cast to half


class Shifted(nn.Module):
    """The identity, times a weight, plus a buffer."""

    def __init__(self, weight: list[float], shift: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.shift


@pytest.mark.parametrize(
    ("weight", "shift", "name", "index"),
    [
        ([1.0, 1e5], [0.0, 0.0], "parameter inner.weight", 1),
        ([1.0, 1.0], [1e5, 0.0], "buffer inner.shift", 0),
    ],
)
def test_what_the_cast_of_a_weight_or_buffer_makes_infinite_is_an_overflow(
    weight: list[float], shift: list[float], name: str, index: int
) -> None:
    model = Calls(lambda self, x: self.inner(x), inner=Shifted(weight, shift))
    trace = traced(model, torch.ones(2, 2), mode="half")
    (birth,) = (b for b in trace.births if not b.parents)
    assert (birth.origin, birth.name, birth.value) == ("op", name, "inf")
    assert birth.site is not None
    assert (birth.site.module, birth.site.op) == ("inner", "aten::_to_copy")
    assert (birth.exact_value, birth.rerun, birth.index, birth.samples) == (1e5, "finite", (index,), None)
    report = diagnose(trace, Policy(today=date(2026, 1, 1)))
    assert report.verdict == "forward-overflow"
    assert [f.message for f in report.findings if f.severity == "error"] == [
        f"{name} holds 100,000; FP16 ends at 65,504."
    ]


def test_a_weight_that_is_infinite_as_built_is_bad_input() -> None:
    trace = traced(Shifted([1.0, float("inf")], [0.0, 0.0]), torch.ones(2, 2), mode="half")
    assert [(b.origin, b.name) for b in trace.births] == [("parameter", "weight")]


def test_a_mask_that_the_cast_makes_infinite_and_a_softmax_takes_in_is_harmless() -> None:
    model = Calls(lambda self, x: torch.softmax(self.inner(x), -1), inner=Shifted([1.0, 1.0], [0.0, -1e9]))
    report = diagnose(traced(model, torch.ones(2, 2), mode="half"), Policy(today=date(2026, 1, 1)))
    assert (report.verdict, {f.severity for f in report.findings}) == ("clean", {"info"})


class TimesAMillion(torch.autograd.Function):
    """The identity; its gradient is too large for FP16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 1e6


def test_a_fault_in_a_backward_written_by_hand_is_reported_at_its_line() -> None:
    model = Calls(lambda self, x: TimesAMillion.apply(self.inner(x)), inner=linear())
    report = diagnose(traced(model, mode="half"), Policy(today=date(2026, 1, 1)))
    fault = report.first_fault
    assert fault is not None and fault.source is not None and fault.backward_source is not None
    assert fault.source.text == "return x.clone()"  # as for every op of backward: the forward line
    assert fault.backward_source.text == "return gradients[0] * 1e6"
    lines = [f.source and f.source.text for f in report.findings if f.op == "aten::mul"]
    assert lines == ["return gradients[0] * 1e6"]


# ---------------------------------------------------------------- several batches


def test_each_batch_has_its_passes_and_a_second_look_where_it_needs_one() -> None:
    sound, bad = torch.ones(2, 4), torch.full((2, 4), 300.0)
    trace = traced(Calls(lambda self, x: x * x), sound, bad, sound, mode="half")
    assert runs(trace) == [(role, batch) for batch in range(3) for role in ("reference", "candidate")]
    assert [b.batch for b in trace.births] == [1]
    assert [p.loss for p in trace.passes] == [8.0, 8.0, 720000.0, float("inf"), 8.0, 8.0]


def test_progress_counts_passes() -> None:
    seen: list[tuple[str, int, int]] = []
    plan = Plan(loss_scale=1.0, search_scale=False)
    probe(workload(linear(), X, X), plan, lambda *step: seen.append(step))
    assert seen[:5] == [
        ("FP32 reference, batch 0", 0, 4),
        ("float16 candidate, batch 0", 1, 4),
        ("batch 0 without recording", 1, 4),
        ("FP32 reference, batch 1", 2, 4),
        ("float16 candidate, batch 1", 3, 4),
    ]


# ---------------------------------------------------------------- the same again


def test_dropout_draws_the_same_again() -> None:
    trace = traced(Calls(lambda self, x: F.dropout(self.linear(x), 0.5), linear=linear()))
    assert (trace.deterministic, trace.observer_changed_loss) == (True, False)


def test_noise_from_outside_is_not_deterministic() -> None:
    def forward(self: Calls, x: Tensor) -> Tensor:
        return self.linear(x).float() + int.from_bytes(os.urandom(8), "little") / 2**64

    trace = traced(Calls(forward, linear=linear()))
    assert (trace.deterministic, trace.observer_changed_loss) == (False, None)


def test_a_loss_that_only_the_recording_changes() -> None:
    # As a kernel does that runs another way where it is watched; only recorded passes come to backward.
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear()

        def forward(self, x: Tensor) -> Tensor:
            recording = any(type(m).__name__ == "Observer" for m in _modes())
            return self.linear(x) + float(recording)

    trace = traced(Changes())
    assert (trace.deterministic, trace.observer_changed_loss) == (True, True)


def _modes() -> list[Any]:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return list(_get_current_dispatch_mode_stack())


# ---------------------------------------------------------------- the caller's autocast


def test_passes_under_the_callers_autocast_cast_their_own_weights() -> None:
    def casts(trace: Trace) -> list[int]:
        return [
            sum(r.site.op == "aten::_to_copy" for r in p.sites) for p in trace.passes if p.role == "candidate"
        ]

    model = Calls(lambda self, x: self.inner(x), inner=linear())
    batches = (torch.ones(3, 4), torch.ones(3, 4))
    alone = traced(model, *batches)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within = traced(model, *batches)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0
    first, second = casts(alone)
    assert first == second > 0
    assert casts(within) == [first, second]
