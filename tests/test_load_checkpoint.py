"""Checkpoints: what fits is copied, what does not is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ampdoctor.errors import LoadError
from ampdoctor.load.checkpoint import load_checkpoint


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(3, 2)
        self.head = torch.nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


def small() -> torch.nn.Linear:
    return torch.nn.Linear(2, 1)


STATE = {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([3.0])}


def load(
    folder: Path, content: Any, model: torch.nn.Module | None = None, name: str = "w.pt"
) -> torch.nn.Module:
    model = model or small()
    file = folder / name
    if name.endswith(".safetensors"):
        save_file(content, file)
    else:
        torch.save(content, file)
    load_checkpoint(model, file, name)
    return model


def failure(folder: Path, content: Any, model: torch.nn.Module | None = None) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load(folder, content, model)
    return caught.value


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "w.bin", "w.ckpt"])
def test_every_kind_of_file(tmp_path: Path, name: str) -> None:
    model = load(tmp_path, STATE, name=name)
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {"weight": [[1.0, 2.0]], "bias": [3.0]}


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": STATE, "epoch": 3},
        {"model": STATE, "optimizer": {}},
        {"model_state_dict": STATE},
        {"model": {"state_dict": STATE}},
        {f"module.{k}": v for k, v in STATE.items()},
        {f"_orig_mod.{k}": v for k, v in STATE.items()},
        {f"module._orig_mod.{k}": v for k, v in STATE.items()},
    ],
)
def test_wrappers_and_prefixes_are_taken_off(tmp_path: Path, content: dict[str, Any]) -> None:
    assert load(tmp_path, content).get_parameter("bias").item() == 3.0


def test_a_prefix_within_the_names_is_taken_off(tmp_path: Path) -> None:
    state = {f"0._orig_mod.{k}": v for k, v in STATE.items()}
    assert load(tmp_path, state, torch.nn.Sequential(small())).get_parameter("0.bias").item() == 3.0


def test_a_model_whose_names_really_begin_with_module_keeps_them(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"module": small()})
    assert load(tmp_path, {f"module.{k}": v for k, v in STATE.items()}, model)


def test_a_tied_weight_may_be_in_the_file_once(tmp_path: Path) -> None:
    model = load(tmp_path, {"embed.weight": torch.ones(3, 2)}, Tied())
    assert model.get_parameter("head.weight").sum() == 6.0


def test_values_take_the_dtype_of_the_model(tmp_path: Path) -> None:
    model = load(tmp_path, {k: v.half() for k, v in STATE.items()})
    assert model.get_parameter("weight").dtype == torch.float32


def test_missing_unknown_and_reshaped_names_are_listed(tmp_path: Path) -> None:
    error = failure(tmp_path, {"weight": torch.zeros(4, 2), "scale": torch.zeros(1)})
    assert error.message == (
        "model.checkpoint: w.pt does not fit the model: "
        "1 missing from the file, 1 unknown to the model, 1 of another shape"
    )
    assert error.hint.splitlines() == [
        "Is it the checkpoint of this model, built with the same model.kwargs?",
        "  missing from the file:",
        "    bias",
        "  unknown to the model:",
        "    scale",
        "  of another shape:",
        "    weight: the file has [4, 2], the model [1, 2]",
    ]


def test_ten_names_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    error = failure(tmp_path, {**STATE, **{f"x{n:02}": torch.ones(1) for n in range(13)}})
    assert error.message == "model.checkpoint: w.pt does not fit the model: 13 unknown to the model"
    lines = error.hint.splitlines()
    assert lines[1] == "  unknown to the model:"
    assert lines[2:] == [f"    x{n:02}" for n in range(10)] + ["    ... and 3 more"]


def test_another_prefix_is_named(tmp_path: Path) -> None:
    error = failure(tmp_path, {f"net.{k}": v for k, v in STATE.items()})
    assert error.hint.splitlines()[0] == "The file's names start with 'net.'; the model's do not."
    error = failure(tmp_path, STATE, torch.nn.Sequential(small()))
    assert error.hint.splitlines()[0] == "The model's names start with '0.'; the file's do not."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.ones(2), "model.checkpoint: w.pt holds a tensor of shape [2], float32, not weights by name"),
        ({"epoch": 3}, "model.checkpoint: w.pt holds a dict with the keys epoch, not weights by name"),
        (
            [STATE],
            "model.checkpoint: w.pt holds a list of 1 (a dict with the keys weight, bias), "
            "not weights by name",
        ),
    ],
)
def test_what_is_no_state_says_what_it_is(tmp_path: Path, content: Any, message: str) -> None:
    assert failure(tmp_path, content).message == message


def test_a_pickled_model_is_refused(tmp_path: Path) -> None:
    assert failure(tmp_path, small()).message == (
        "model.checkpoint: w.pt holds more than plain tensors (it asks for torch.nn.modules.linear.Linear); "
        "reading it could run code, so it was not read"
    )


def test_a_missing_file_and_an_unknown_kind(tmp_path: Path) -> None:
    for name, message in [
        ("w.pt", f"model.checkpoint: w.pt is not there (looked in {tmp_path})"),
        ("w.h5", "model.checkpoint: w.h5 is no .safetensors, .pt, .pth, .bin or .ckpt file"),
    ]:
        with pytest.raises(LoadError) as caught:
            load_checkpoint(small(), tmp_path / name, name)
        assert caught.value.message == message
