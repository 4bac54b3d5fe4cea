"""What is said of the way a model was run: how its batch was passed, in which mode, whose cast it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampdoctor
from ampdoctor.errors import ProbeError
from ampdoctor.facts.site import Source
from ampdoctor.probe.watch.conversions import line_converts
from load_helpers import load_in

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            {"image": X, "label": 1},
            "whole, as model(batch): its keys image, label are not the parameters of Sequential.forward(",
        ),
        ({"input": 1}, "passed as model(input=...)"),
        ([X, X], "a list with a tensor in it is one batch, of several tensors"),
        ((1,), "passed as model(*batch), a tuple of 1 (the number 1)"),
    ],
)
def test_how_the_batch_was_passed_is_said_where_the_model_raises(batch: Any, words: str) -> None:
    with pytest.raises(ProbeError) as raised:
        ampdoctor.scan(net(), batch, "none", device="cpu")
    assert words in (raised.value.hint or "")
    assert "\n" not in (raised.value.hint or "")


def test_what_a_loss_of_the_users_passes_is_theirs() -> None:
    with pytest.raises(ProbeError) as raised:
        ampdoctor.scan(net(), X, lambda model, batch: model(1), device="cpu")
    assert "passed" not in (raised.value.hint or "")


def mean(model: nn.Module, batch: Tensor) -> Tensor:
    made: Tensor = model(batch).square().mean()
    return made


def test_a_scan_in_training_says_that_evaluation_was_not_looked_at() -> None:
    said = "eval mode, in which BatchNorm1d, Dropout compute something else (model: {mode: eval})"
    assert said in ampdoctor.scan(net().train(), X, mean, device="cpu").not_seen
    assert not any("eval" in words for words in ampdoctor.scan(net().eval(), X, mean, device="cpu").not_seen)
    plain = nn.Sequential(nn.Linear(8, 2), nn.Dropout(0.0), nn.LayerNorm(2))
    assert not any("eval" in words for words in ampdoctor.scan(plain, X, mean, device="cpu").not_seen)


@pytest.mark.parametrize(("mode", "training"), [("eval", False), ("train", True), (None, False)])
def test_a_config_sets_the_mode_of_the_whole_model(tmp_path: Path, mode: str | None, training: bool) -> None:
    (tmp_path / "models.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()\n"
    )
    line = "" if mode is None else f", mode: {mode}"
    data = "data: {synthetic: {input: {shape: [2]}}}\nloss: none"
    model = load_in(tmp_path, f"model: {{target: 'models.py:build'{line}}}\n{data}").model
    assert {module.training for module in model.modules()} == {training}


@pytest.mark.parametrize(
    ("line", "converts"),
    [
        ("y = x.to(torch.half)", True),
        ("y = torch.zeros(3, dtype=x.dtype)", True),
        ("y = x.float()  # keep", True),
        ("y = f(x, compute_dtype)", True),
        ("y = x.type_as(", True),
        ("y = a @ b  # in whatever dtype autocast likes, as .half() would", False),
        ("y = lookup['dtype'] @ b", False),
        ("y = self.to(", True),
        ("y = self.dtypes_seen(x)", False),
        ("y = x.halftime(1)", False),
        ('"""half a string', False),
    ],
)
def test_only_code_makes_a_cast_the_users(line: str, converts: bool) -> None:
    assert line_converts(Source("model.py", 1, line, "forward")) is converts


def test_a_comment_changes_no_answer() -> None:
    class Commented(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.inner.weight)  # the dtype of x is autocast's

    torch.manual_seed(0)
    model = Commented()
    with torch.no_grad():
        model.inner.weight[0, 0] = 1e5
    report = ampdoctor.scan(model, X, mean, device="cpu")
    assert report.first_fault is not None
    assert (report.first_fault.op, report.first_fault.implicit_cast) == ("aten::_to_copy", True)
