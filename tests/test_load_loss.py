"""How a batch becomes a loss, and what is said where none comes out."""

from __future__ import annotations

import dataclasses
import math
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch

from ampdoctor.errors import LoadError
from ampdoctor.load.call import call_model
from ampdoctor.load.loss import NAME_A_LOSS, ONE_OF_SEVERAL
from load_helpers import load_failure, load_in, write
from loss_models import LOSS_CODE, ONE, TWO, Model, TakesOne, TakesTwo, X, step_of


@dataclasses.dataclass
class Record:
    x: int
    y: int


@pytest.mark.parametrize(
    ("model", "batch", "called"),
    [
        (TakesTwo(), {"x": ONE, "y": TWO}, (ONE, TWO)),
        (TakesTwo(), UserDict(x=ONE, y=TWO), (ONE, TWO)),
        (TakesTwo(), (ONE, TWO), (ONE, TWO)),
        (TakesTwo(), [ONE, TWO], (ONE, TWO)),
        (TakesTwo(), Record(1, 2), (1, 2)),
        (TakesOne(), ONE, ONE),
        (TakesOne(), {"x": ONE}, ONE),
        (TakesOne(), {"image": ONE, "mask": TWO}, {"image": ONE, "mask": TWO}),
        (TakesOne(), (ONE, TWO), (ONE, TWO)),
        (TakesOne(), (ONE,), ONE),
        (TakesOne(), Record(1, 2), Record(1, 2)),
    ],
)
def test_a_model_is_called_as_the_batch_suggests(model: Model, batch: Any, called: Any) -> None:
    call_model(model, batch)
    assert model.called == called


def test_a_packed_sequence_is_one_argument() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2)])
    model = TakesOne()
    call_model(model, packed)
    assert model.called is packed


class TakesKeywords(Model):
    def forward(self, *, ids: Any, mask: Any) -> Any:
        return self.output


def test_a_batch_with_other_names_is_a_clear_error() -> None:
    with pytest.raises(LoadError) as caught:
        call_model(TakesKeywords(), {"ids": ONE, "labels": ONE})
    assert caught.value.message == (
        "the batch does not fit the model: TakesKeywords.forward(*, ids: 'Any', mask: 'Any') -> 'Any' "
        "cannot take a dict with the keys ids, labels"
    )


def test_what_the_model_itself_raises_passes_through() -> None:
    class Raises(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        call_model(Raises(), ONE)


class HasLoss:
    def __init__(self, loss: Any) -> None:
        self.loss = loss


@pytest.mark.parametrize(
    "output",
    [
        HasLoss(TWO),
        {"loss": TWO, "logits": ONE},
        TWO,
        TWO.reshape(1),
        (TWO, torch.zeros(8, 10)),
        [torch.zeros(8, 10), TWO, torch.tensor(3)],
        (torch.tensor(0.5), TWO.clone().requires_grad_()),  # an accuracy, and the loss
    ],
)
def test_the_loss_is_found_in_the_output(output: Any) -> None:
    assert step_of(None)(TakesOne(output), ONE).item() == 2.0


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        (
            torch.zeros(8, 10),
            "the model returned a tensor of shape [8, 10], float32, not a loss",
            NAME_A_LOSS,
        ),
        (
            {"logits": ONE, "cache": None},
            "the model returned a dict with the keys logits, cache, not a loss",
            NAME_A_LOSS,
        ),
        (
            HasLoss(None),
            "the model returned a HasLoss, not a loss",
            f"Its loss is None: give the model its labels in the batch. {NAME_A_LOSS}",
        ),
        (
            (ONE, TWO),
            "the model returned a tuple of 2 (a tensor of shape [], float32, "
            "a tensor of shape [], float32), not a loss",
            NAME_A_LOSS,
        ),
        (
            HasLoss(torch.zeros(4)),
            "the model's output.loss gives a tensor of shape [4], float32; a loss is a single number",
            "Reduce it: loss.mean().",
        ),
        (
            {"loss": 0.5},
            'the model\'s output["loss"] gives the number 0.5, not a loss tensor',
            "Return the tensor itself, without .item() or float().",
        ),
    ],
)
def test_an_output_without_a_loss_says_what_came(output: Any, message: str, hint: str) -> None:
    with pytest.raises(LoadError) as caught:
        step_of(None)(TakesOne(output), ONE)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_loss_none_gives_the_outputs(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "import torch\nclass Net(torch.nn.Identity): pass")
    workload = load_in(
        tmp_path, "model: {target: models.py:Net}\ndata: {synthetic: {input: {shape: [2]}}}\nloss: none"
    )
    assert workload.forward_only
    assert workload.step(workload.model, workload.batches[0]) is workload.batches[0]["input"]


# ---------------------------------------------------------------- functions


def loss_config(folder: Path, loss: str) -> str:
    write(folder, "models.py", LOSS_CODE)
    return f"""
        model: {{target: models.py:build_model}}
        data: {{synthetic: {{x: {{shape: [4, 2]}}}}}}
        loss: {loss}
        """


@pytest.mark.parametrize("name", ["with_outputs", "in_a_dict"])
def test_a_loss_beside_other_results_is_taken(tmp_path: Path, name: str) -> None:
    workload = load_in(tmp_path, loss_config(tmp_path, f"{{target: models.py:{name}}}"))
    assert workload.step(workload.model, workload.batches[0]).item() == 2.0


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("{target: models.py:criterion}", 4.0),  # two numbers, each off by sqrt(2)
        ("{target: 'torch.nn:MSELoss'}", 2.0),
        ("{target: 'torch.nn:MSELoss', kwargs: {reduction: sum}}", 4.0),
        ("{target: 'torch.nn.functional:mse_loss', kwargs: {reduction: sum}}", 4.0),
    ],
)
def test_a_loss_of_output_and_target_is_called_as_the_builtin_ones(
    tmp_path: Path, loss: str, expected: float
) -> None:
    step = load_in(tmp_path, loss_config(tmp_path, loss)).step
    zeros = torch.zeros(2, 1)
    found = step(TakesOne(zeros), {"x": X, "labels": zeros + math.sqrt(2)})
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_a_function_of_output_and_target_is_known_by_its_first_parameters_name(tmp_path: Path) -> None:
    step = load_in(tmp_path, loss_config(tmp_path, "{target: models.py:of_output, kwargs: {factor: 3}}")).step
    assert step(TakesOne(torch.zeros(2)), (X, torch.tensor([2.0, 4.0]))).item() == 12.0
    with pytest.raises(LoadError, match=r"^loss.target: models.py:of_output: the batch is a tensor"):
        step(TakesOne(X), X)


def test_a_loss_function_gets_its_kwargs(tmp_path: Path) -> None:
    workload = load_in(tmp_path, loss_config(tmp_path, "{target: models.py:good, kwargs: {factor: 7}}"))
    assert workload.step(workload.model, workload.batches[0]).item() == 7.0
    assert not workload.forward_only


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("nothing", "gives None, not a loss tensor", "Is a `return` missing?"),
        (
            "losses",
            "gives a list of 2 (a tensor of shape [], float32, a tensor of shape [], float32), "
            "not a loss tensor",
            ONE_OF_SEVERAL,
        ),
        ("by_name", "gives a dict with the keys box, not a loss tensor", ONE_OF_SEVERAL),
        (
            "vector",
            "gives a tensor of shape [4], float32; a loss is a single number",
            "Reduce it: loss.mean().",
        ),
        (
            "empty",
            "gives a tensor of shape [0], float32; a loss is a single number",
            "It is empty; is the batch?",
        ),
        (
            "integer",
            "gives a tensor of shape [], int64, which has no gradient",
            "A loss is floating point.",
        ),
    ],
)
def test_a_result_that_is_no_loss(tmp_path: Path, name: str, message: str, hint: str | None) -> None:
    workload = load_in(tmp_path, loss_config(tmp_path, f"{{target: models.py:{name}}}"))
    with pytest.raises(LoadError) as caught:
        workload.step(workload.model, workload.batches[0])
    assert caught.value.message == f"loss.target: models.py:{name} {message}"
    assert caught.value.hint == (hint or "Return only the loss, one number.")


def test_a_number_without_its_graph_is_no_loss(tmp_path: Path) -> None:
    workload = load_in(tmp_path, loss_config(tmp_path, "{target: models.py:number}"))
    with pytest.raises(LoadError, match=r"(?m)not a loss tensor$") as caught:
        workload.step(workload.model, workload.batches[0])
    assert caught.value.hint == "Return the tensor itself, without .item() or float()."


def test_what_the_loss_itself_raises_passes_through(tmp_path: Path) -> None:
    workload = load_in(tmp_path, loss_config(tmp_path, "{target: models.py:raises}"))
    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        workload.step(workload.model, workload.batches[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "one_argument",
            "loss.target: models.py:one_argument takes (output): too many positional arguments",
        ),
        ("Criterion", "loss.target: models.py:Criterion is the class Criterion"),
    ],
)
def test_a_loss_takes_the_model_and_a_batch(tmp_path: Path, name: str, message: str) -> None:
    error = load_failure(tmp_path, loss_config(tmp_path, f"{{target: models.py:{name}}}"))
    assert error.message == message
