"""Losses of (output, target): torch's by name, and the user's own."""

from __future__ import annotations

import math
from collections import UserDict
from typing import Any, get_args

import pytest
import torch

from ampdoctor.config.workload import LossBuiltin
from ampdoctor.errors import LoadError
from ampdoctor.load.builtin_losses import LOSSES
from loss_models import ONE, TWO, TakesOne, TakesTwo, X, step_of


def builtin(name: str, output: Any, batch: Any, **kwargs: Any) -> torch.Tensor:
    loss = step_of({"builtin": name, "kwargs": kwargs})(TakesOne(output), batch)
    assert isinstance(loss, torch.Tensor)
    return loss


@pytest.mark.parametrize(
    ("name", "output", "target", "loss"),
    [
        ("mse", torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), 5.0),
        ("l1", torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), 2.0),
        ("smooth_l1", torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), 1.5),
        ("huber", torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]), 1.5),
        ("cross_entropy", torch.zeros(2, 4), torch.tensor([0, 3]), math.log(4)),
        ("cross_entropy", torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), math.log(4)),
        ("cross_entropy", torch.zeros(2, 4, 3), torch.zeros(2, 3, dtype=torch.int64), math.log(4)),
        ("nll", torch.tensor([[-2.0, 0.0]]), torch.tensor([0]), 2.0),
        ("bce", torch.tensor([0.5]), torch.tensor([1]), math.log(2)),
        ("bce_with_logits", torch.tensor([0.0]), torch.tensor([True]), math.log(2)),
        ("kl_div", torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 0.0]]), math.log(2)),
    ],
)
def test_builtin_losses(name: str, output: torch.Tensor, target: torch.Tensor, loss: float) -> None:
    assert builtin(name, output, (X, target)).item() == pytest.approx(loss, rel=1e-6)


def test_every_builtin_of_the_contract_exists() -> None:
    assert set(LOSSES) == set(get_args(LossBuiltin.model_fields["builtin"].annotation))


def test_a_builtin_loss_takes_keyword_arguments() -> None:
    assert builtin("mse", torch.tensor([1.0, 3.0]), (X, torch.zeros(2)), reduction="sum").item() == 10.0


@pytest.mark.parametrize(
    "batch",
    [
        {"x": X, "labels": TWO},
        {"image": X, "y": TWO},
        UserDict(x=X, target=TWO),
        (X, TWO),
        [X, TWO],
    ],
)
def test_a_builtin_loss_finds_inputs_and_target(batch: Any) -> None:
    model = TakesOne(ONE)
    assert step_of({"builtin": "mse"})(model, batch).item() == 1.0
    assert model.called is X


def test_more_inputs_go_to_the_model_together() -> None:
    model = TakesTwo(ONE)
    step_of({"builtin": "mse"})(model, (ONE, TWO, TWO))
    assert model.called == (ONE, TWO)


@pytest.mark.parametrize("output", [{"logits": ONE, "z": TWO}, {"anything": ONE}, (ONE, TWO), [ONE]])
def test_a_builtin_loss_finds_the_prediction(output: Any) -> None:
    assert builtin("mse", output, (X, TWO)).item() == 1.0


@pytest.mark.parametrize(
    ("output", "batch", "message"),
    [
        (ONE, ONE, "loss.builtin: the batch is a tensor of shape [], float32"),
        (ONE, {"x": X, "z": X}, "loss.builtin: the batch, a dict with the keys x, z, names no target"),
        (ONE, {"y": X}, "loss.builtin: the batch, a dict with the keys y, names no target"),
        (ONE, (X, [1]), "loss.builtin: the batch's target is a list of 1 (the number 1), not a tensor"),
        (
            {"a": ONE, "b": ONE},
            (X, X),
            "loss.builtin: the model returned a dict with the keys a, b, "
            "and no prediction is to be seen in it",
        ),
    ],
)
def test_a_builtin_loss_says_what_it_misses(output: Any, batch: Any, message: str) -> None:
    with pytest.raises(LoadError) as caught:
        builtin("mse", output, batch)
    assert caught.value.message == message
