"""What real models do to a probe: every container, every kind of tensor, every way of running a module.

Each test scans a small model of one kind. ``scan`` checks besides that the model is left exactly as it was.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampdoctor.config import Config
from case_runner import candidate, codes, run_config, scan, warnings_of
from model_parts import mean_square

# ---------------------------------------------------------------- modules, parameters, views


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        return x


def test_a_shared_module_has_one_record_and_three_calls() -> None:
    torch.manual_seed(0)
    trace, report = scan(Recurrent(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    cell = next(m for m in trace.modules if m.path == "cell")
    assert (cell.type, cell.calls, cell.parameters) == ("Linear", 3, 20)
    calls = [r.site.nth for r in candidate(trace).sites if r.site.op == "aten::addmm"]
    assert calls == [0, 1, 2]


def test_one_module_under_two_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

    torch.manual_seed(0)
    trace, report = scan(Twice(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert "AMP902" not in codes(report)
    assert {r.site.module for r in candidate(trace).sites if r.site.op == "aten::addmm"} == {"first"}


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    torch.manual_seed(0)
    trace, report = scan(
        Tied(),
        torch.arange(10),
        lambda m, tokens: F.cross_entropy(m(tokens).float(), tokens),
        loss_scale=1024.0,
    )
    assert report.verdict == "clean"
    assert [(p.name, p.numel) for p in candidate(trace).parameters] == [("embed.weight", 40)]
    assert trace.environment.trainable_parameters == 40


class InPlace(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x).clone()
        left, right = h[:, :2], h[:, 2:]
        left.mul_(self.factor)
        right.add_(1.0)
        return F.relu(h.t().reshape(4, -1), inplace=True)


def test_in_place_ops_on_views_are_followed() -> None:
    torch.manual_seed(0)
    _, report = scan(InPlace(2.0), torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"


def test_an_in_place_overflow_is_born_at_its_op_and_reaches_the_loss_through_the_base() -> None:
    torch.manual_seed(0)
    _, report = scan(InPlace(1e6), 10 * torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("", "aten::mul_")
    assert report.first_fault.source is not None
    assert report.first_fault.source.text == "left.mul_(self.factor)"


# ---------------------------------------------------------------- scripts, compilation, what nobody runs


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x)) * x


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_is_measured(how: str) -> None:
    torch.manual_seed(0)
    gate: Any = torch.jit.script(Gate()) if how == "script" else torch.jit.trace(Gate(), torch.randn(2, 4))
    model = nn.Sequential(nn.Linear(4, 4), gate, nn.Linear(4, 1))
    trace, report = scan(model, torch.randn(3, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    script = next(m for m in trace.modules if m.path == "1")
    assert script.calls == 1
    assert script.opaque or any(r.site.module.startswith("1") for r in candidate(trace).sites)
    assert {p.name for p in candidate(trace).parameters} == {n for n, _ in model.named_parameters()}


COMPILED = """
import torch
from torch import nn


def build_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0] = torch.compile(model[0])
    return torch.compile(model)


def build_batch():
    return torch.randn(3, 4)


def compute_loss(model, x):
    return model(x).float().square().mean()
"""


def test_a_compiled_model_runs_eagerly_and_the_trace_says_so(tmp_path: Path) -> None:
    (tmp_path / "compiled.py").write_text(COMPILED)
    document = {
        "model": {"target": "compiled.py:build_model"},
        "data": {"target": "compiled.py:build_batch"},
        "loss": {"target": "compiled.py:compute_loss"},
        "precision": {"loss_scale": 64.0, "device": "cpu"},
    }
    trace, report = run_config(Config.model_validate(document).located(tmp_path, "compiled"))
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert {m.path: m.compiled for m in trace.modules} == {"": True, "0": True, "1": False, "2": False}
    assert {r.site.module for r in candidate(trace).sites if r.site.op == "aten::addmm"} == {"0", "2"}
    assert any("compile" in phrase for phrase in report.not_seen)


def test_a_module_that_never_runs_is_a_doubt_and_no_fault() -> None:
    class HasSpare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 1)
            self.spare = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    torch.manual_seed(0)
    trace, report = scan(HasSpare(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert [f.module for f in report.findings if f.code == "AMP902"] == ["spare"]
    assert {m.path: m.calls for m in trace.modules}["spare"] == 0


def test_forward_only() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    trace, report = scan(model, torch.randn(2, 4), lambda m, x: m(x), forward_only=True)
    assert report.verdict == "clean"
    assert trace.environment.forward_only
    assert candidate(trace).loss is None
    assert {r.site.phase for r in candidate(trace).sites} == {"forward"}


def test_a_forward_only_overflow_reaches_the_output() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        model[1].weight.fill_(6e4)
    _, report = scan(model, torch.ones(2, 4) * 50, lambda m, x: m(x), forward_only=True)
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("1", "aten::addmm")


def test_no_parameter_needs_a_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    trace, report = scan(model, torch.randn(2, 4), lambda m, x: mean_square(m(x)))
    assert report.verdict in ("clean", "not-measured")
    assert trace.environment.trainable_parameters == 0
    assert candidate(trace).parameters == ()
    assert {r.site.phase for r in candidate(trace).sites} == {"forward"}


def test_a_loss_that_does_not_depend_on_the_parameters() -> None:
    torch.manual_seed(0)
    trace, report = scan(
        nn.Linear(4, 2), torch.randn(2, 4), lambda m, x: mean_square(m(x).detach() + x.sum())
    )
    assert report.verdict in ("clean", "not-measured")
    assert all(p.absmax is None for p in candidate(trace).parameters)


def test_some_parameters_frozen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    trace, report = scan(model, torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert report.verdict == "clean"
    assert [p.name for p in candidate(trace).parameters] == ["2.weight", "2.bias"]


def test_dropout_draws_the_same_mask_in_both_passes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    trace, report = scan(model, torch.randn(4, 16), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    losses = {p.role: p.loss for p in trace.passes}
    assert losses["candidate"] == pytest.approx(losses["reference"], rel=1e-2)


# ---------------------------------------------------------------- where hooks on module outputs fail


class Overflows(nn.Module):
    """Returns a dict and a list with an inf in it; nothing else returns that tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        big = self.linear(x) * 1e6
        return {"parts": [x, big], "mask": x > 0, "nothing": x[:0]}


def test_inf_in_a_list_in_a_dict() -> None:
    torch.manual_seed(0)
    _, report = scan(Overflows(), torch.randn(2, 4), lambda m, x: mean_square(m(x)["parts"][1]))
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == ("", "aten::mul")


class ReturnsMask(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x > 0, x[:0], x.argmax(-1)


def test_a_module_that_returns_a_mask_an_empty_tensor_and_indices() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.mask = ReturnsMask()

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            keep, empty, _ = self.mask(h)
            return torch.cat([h * keep, empty])

    torch.manual_seed(0)
    _, report = scan(Masked(), torch.randn(2, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_a_causal_mask_of_minus_infinity_is_no_fault() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            scores = h @ h.transpose(1, 2)
            mask = torch.full((5, 5), -math.inf).triu(1)
            return (scores + mask).softmax(-1) @ h

    torch.manual_seed(0)
    _, report = scan(Causal(), torch.randn(2, 5, 4), lambda m, x: mean_square(m(x)), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_an_inf_that_only_backward_makes() -> None:
    class Magnitude(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(self.linear(x).float().square())

    torch.manual_seed(0)
    batch = torch.randn(3, 4)
    batch[1] = 0.0  # the root of 0: its derivative is 1 / 0
    _, report = scan(Magnitude(), batch, lambda m, x: m(x).sum(), loss_scale=64.0)
    assert report.verdict == "backward-undefined"
    assert report.first_fault is not None
    assert (report.first_fault.phase, report.first_fault.module) == ("backward", "")
    assert (report.first_fault.op, report.first_fault.forward_op) == ("aten::div", "aten::sqrt")
    assert report.first_fault.samples == (1,)
    assert report.first_fault.fp32_also_fails
    assert report.first_fault.source is not None
    assert report.first_fault.source.text == "return torch.sqrt(self.linear(x).float().square())"


def test_an_inf_that_backward_masks_again_is_no_fault() -> None:
    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(F.relu(self.linear(x)).float())

    torch.manual_seed(0)
    _, report = scan(Rooted(), torch.randn(2, 4), lambda m, x: m(x).sum(), loss_scale=64.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
