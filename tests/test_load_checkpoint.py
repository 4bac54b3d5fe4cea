"""Checkpoints: what fits is copied, what does not is listed."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

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
    error = failure(tmp_path, {f"{part}.{k}": v for k, v in STATE.items() for part in ("student", "ema")})
    assert error.hint.splitlines()[0] == "The file's names start with 'ema.'; the model's do not."
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


@pytest.mark.parametrize(
    "others", [{}, {"criterion.weight": torch.ones(2)}, {f"ema.{k}": 2 * v for k, v in STATE.items()}]
)
def test_the_model_below_lightnings_prefix_is_the_model(tmp_path: Path, others: dict[str, Any]) -> None:
    state = {**{f"model.{k}": v for k, v in STATE.items()}, **others}
    assert load(tmp_path, {"state_dict": state, "epoch": 3}, name="last.ckpt").get_parameter("bias") == 3.0


def test_the_model_below_one_other_prefix_is_the_model(tmp_path: Path) -> None:
    assert load(tmp_path, {f"net.{k}": v for k, v in STATE.items()}).get_parameter("bias") == 3.0


def test_a_checkpoint_with_objects_says_the_line_that_converts_it(tmp_path: Path) -> None:
    content = {"state_dict": STATE, "hyper_parameters": argparse.Namespace(lr=0.1)}
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(LoadError, match=r"\(it asks for argparse.Namespace\)") as caught:
        load_checkpoint(small(), tmp_path / "last.ckpt", "last.ckpt")
    line = caught.value.hint.partition("this makes one: ")[2]
    subprocess.run([sys.executable, *shlex.split(line)[1:]], cwd=tmp_path, check=True)
    model = small()
    load_checkpoint(model, tmp_path / "weights.pt", "weights.pt")
    assert model.get_parameter("bias") == 3.0


# ---------------------------------------------------------------- folders


def loaded(place: Path) -> torch.nn.Module:
    model = small()
    load_checkpoint(model, place, place.name)
    return model


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "other.safetensors"])
def test_a_folder_with_one_file_of_weights(tmp_path: Path, name: str) -> None:
    load(tmp_path, STATE, name=name)
    (tmp_path / "config.json").write_text("{}")
    assert loaded(tmp_path).get_parameter("bias") == 3.0


def test_shards_by_their_index_and_by_their_folder(tmp_path: Path) -> None:
    for number, (name, tensor) in enumerate(STATE.items()):
        save_file({name: tensor}, tmp_path / f"model-{number}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    shards = {name: f"model-{number}.safetensors" for number, name in enumerate(STATE)}
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert loaded(index).get_parameter("bias") == loaded(tmp_path).get_parameter("bias") == 3.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "is no index of shards: JSONDecodeError"),
        ("[]", "is no index of shards: TypeError"),
        ("{}", "is no index of shards: KeyError: 'weight_map'"),
        ('{"weight_map": {"a": 3}}', "is no index of shards: TypeError"),
        ('{"weight_map": {"a": "../x.bin"}}', "names a file outside its folder: ../x.bin"),
        ('{"weight_map": {"a": "x.bin"}}', "x.bin is not there"),
    ],
)
def test_an_index_of_nothing(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(LoadError, match=re.escape(message)):
        loaded(tmp_path)


def test_a_folder_without_weights_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(LoadError, match=r"(?m)is a folder without a checkpoint; it holds notes\.txt$"):
        loaded(tmp_path)


def distributed(folder: Path, content: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "assuming the intent is to save in a single process"
        save_distributed(content, checkpoint_id=folder)
    return folder


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_distributed_checkpoint(tmp_path: Path, prefix: str) -> None:
    trained = small()
    optimizer = torch.optim.AdamW(trained.parameters())
    trained(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state: dict[str, Any] = trained.state_dict()
    content = {"model": state, "optim": optimizer.state_dict(), "step": 3} if prefix else state
    found = loaded(distributed(tmp_path / "step-3", content))
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in state.items())


def test_a_distributed_checkpoint_that_would_run_code_does_not(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    folder = distributed(tmp_path / "dcp", STATE)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(LoadError, match=r"cannot be read as a checkpoint of torch.distributed: it asks for"):
        loaded(folder)
    assert not (tmp_path / "ran").exists()
