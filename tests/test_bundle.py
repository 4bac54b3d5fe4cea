"""A recorded step, made again from its files alone: the same loss, to the last bit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ampdoctor
from ampdoctor.api.bundle_load import bundled
from ampdoctor.errors import AmpDoctorError, LoadError
from ampdoctor.load.script.tape_calls import decoded, encoded, function_of, name_of
from ampdoctor.store import bundles
from ampdoctor.store.codec import FileError
from flight_scripts import Tied, attention, convolution, record

Y = torch.tensor([0, 1, 2, 0, 1])


def replayed(folder: Path, model: str | None = None) -> tuple[float, float | None]:
    """The loss that the bundle's step gives here, and the recorded one."""
    torch.manual_seed(99)  # the bundle's own generators count
    with bundled(folder, model) as (workload, _, bundle):
        loss: Tensor = workload.step(workload.model, workload.batches[0])
        loss.backward()
        assert all(p.grad is not None for p in workload.model.parameters())
        return loss.item(), bundle.loss


@pytest.mark.parametrize("build", [convolution, attention])
def test_torch_s_own_modules_need_no_code(tmp_path: Path, build: Any) -> None:
    net = build()
    folder = record(
        tmp_path, list(net.parameters()), lambda x: net(x[:, None, :]).float().square().mean() + 1, net
    )
    here, there = replayed(folder)
    assert here == there


def test_a_recurrent_module_needs_no_code(tmp_path: Path) -> None:
    net = nn.Sequential(nn.LSTM(6, 4))
    folder = record(tmp_path, list(net.parameters()), lambda x: net(x)[0].square().mean() + 1, net)
    here, there = replayed(folder)
    assert here == there


def test_a_model_of_transformers_is_built_from_its_config(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    net = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    ids = torch.arange(18).reshape(2, 9)
    folder = record(
        tmp_path, list(net.parameters()), lambda x: net(input_ids=ids, labels=ids).loss * x[0, 0].abs(), net
    )
    here, there = replayed(folder)
    assert here == there


def test_several_roots_and_weights_of_the_script(tmp_path: Path) -> None:
    net, head = Tied(), nn.Linear(6, 3)
    gain, shift = nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)

    def loss_of(x: Tensor) -> Tensor:
        rows = torch.stack([head(net(x[i : i + 1]))[0] * gain for i in range(5)])
        return F.cross_entropy(rows.T.T + shift, Y, label_smoothing=0.1) + 1 * gain.sum()

    folder = record(tmp_path, [*net.parameters(), *head.parameters(), gain, shift], loss_of, net)
    with pytest.raises(LoadError, match=r"the net in it is a flight_scripts\.Tied, which the bundle cannot"):
        replayed(folder)
    here, there = replayed(folder, "flight_scripts:Tied")
    assert here == there


def test_ties_frozen_weights_and_evaluation_come_back(tmp_path: Path) -> None:
    net = Tied()
    net.one.bias.requires_grad_(False)
    net.two.eval()
    folder = record(tmp_path, [*net.one.parameters(), net.two.bias], lambda x: net(x).square().mean(), net)
    with bundled(folder, "flight_scripts:Tied") as (workload, _, bundle):
        model: Any = workload.model
        assert bundle.ties == {"two.weight": "one.weight"}
        assert model.one.weight is model.two.weight
        assert not model.one.bias.requires_grad
        assert (model.training, model.one.training, model.two.training) == (True, True, False)
        assert workload.build_optimizer is not None
        optimizer = workload.build_optimizer(model)
        # twenty steps were taken before it
        assert [float(s["step"]) for s in optimizer.state.values()] == [20.0] * len(optimizer.state)
        assert optimizer.param_groups[0]["lr"] == 0.01


def test_another_model_is_told_from_the_recorded_one(tmp_path: Path) -> None:
    net = Tied()
    folder = record(tmp_path, list(net.parameters()), lambda x: net(x).square().mean(), net)
    with pytest.raises(LoadError, match=r"what --model builds is not the recorded model: it lacks one\.bias"):
        replayed(folder, "torch.nn:Identity")


def test_values_and_functions_go_through_json() -> None:
    values = [
        (1, 2.5, None, True, "cuda"),
        {"a": slice(None, 3), 4: ...},
        [torch.float16, torch.channels_last, torch.device("cuda:1"), torch.Size([2, 3])],
        F.relu,
        (float("inf"),),
    ]
    for value in values:
        written = json.loads(json.dumps(encoded(value, str), allow_nan=False))
        back = decoded(written, lambda tag, inside: None)
        assert back == value and type(back) is type(value)
    assert name_of(torch.Tensor.T.__get__) == "torch.Tensor.T.__get__"  # type: ignore[attr-defined]
    for function in (F.cross_entropy, torch.Tensor.mul, torch.autograd.grad, torch.einsum):
        assert function_of(name_of(function)) is function


@pytest.mark.parametrize("value", [object(), {1, 2}, print, torch.zeros(1)])
def test_a_value_without_a_place_is_refused_with_its_type(value: object) -> None:
    with pytest.raises(LoadError, match=r"cannot be written down|stands where none"):
        encoded(value, str)


@pytest.mark.parametrize(
    "data",
    [
        {"function": "os.system"},
        {"torch": "load"},
        {"call": []},
        {"tuple": 3},
        {"slice": [1]},
        {"a": 1, "b": 2},
    ],
)
def test_data_names_no_code_but_torch_s(data: Any) -> None:
    with pytest.raises(LoadError):
        decoded(data, lambda tag, inside: None)


def small(folder: Path, weight: float = 0.5) -> Path:
    net = nn.Linear(6, 3)
    nn.init.constant_(net.weight, weight)
    return record(folder, list(net.parameters()), lambda x: net(x).square().mean(), net)


def damage(folder: Path, how: str, other: Path) -> None:
    weights, facts = folder / "weights.safetensors", folder / "bundle.json"
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:50])
    elif how == "exchanged":
        weights.write_bytes((other / "weights.safetensors").read_bytes())
    elif how == "gone":
        weights.unlink()
    elif how == "old":
        facts.write_text(facts.read_text().replace("ampdoctor.bundle/1", "ampdoctor.bundle/0"))
    elif how == "half":
        facts.write_bytes(facts.read_bytes()[:500])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "weights.safetensors has 50 bytes"),
        ("exchanged", "weights.safetensors is not the file that was written with it"),
        ("gone", "weights.safetensors is missing"),
        ("old", "is a bundle of another version"),
        ("half", "is not a bundle: it holds no readable JSON"),
    ],
)
def test_a_damaged_bundle_is_named(tmp_path: Path, how: str, words: str) -> None:
    folder, other = small(tmp_path / "a"), small(tmp_path / "b", weight=0.25)
    damage(folder, how, other)
    with pytest.raises(AmpDoctorError, match=words), bundled(folder):
        pass
    with pytest.raises(AmpDoctorError, match=r"has no bundle\.json; the newest of those in it is"):  # noqa: SIM117
        with bundled(tmp_path / "b"):
            pass


def test_facts_that_do_not_fit_together_are_no_traceback(tmp_path: Path) -> None:
    folder = small(tmp_path)
    facts = folder / "bundle.json"
    facts.write_text(facts.read_text().replace('{"batch":0}', '{"batch":7}'))
    with pytest.raises(LoadError, match="does not hold together"), bundled(folder):
        pass


def test_old_bundles_go_and_others_stay(tmp_path: Path) -> None:
    bundle, tensors = bundles.read_bundle(small(tmp_path / "made"))
    shelf = tmp_path / "shelf"
    (shelf / "mine").mkdir(parents=True)
    dead = shelf / ".part-step-00000001-999999999"
    dead.mkdir()
    for step in range(5):
        written = bundles.write_bundle(shelf, f"step-{step:08d}", bundle, tensors, keep=2)
        os.utime(written / "bundle.json", ns=(step * 10**9, step * 10**9))
    assert sorted(p.name for p in shelf.iterdir()) == ["mine", "step-00000003", "step-00000004"]


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small(tmp_path)
    bundle, tensors = bundles.read_bundle(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundles, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        bundles.write_bundle(tmp_path, "step-00000021", bundle, tensors, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]
    assert bundles.read_bundle(folder)[0] == bundle


def test_a_bundle_stays_below_its_size(tmp_path: Path) -> None:
    bundle, tensors = bundles.read_bundle(small(tmp_path / "made"))
    with pytest.raises(bundles.BundleTooLarge):
        bundles.write_bundle(tmp_path / "here", "step-00000001", bundle, tensors, keep=1, most_bytes=64)
    assert not (tmp_path / "here").exists()


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(FileError, match="is a file, and a bundle is a folder"):
        bundles.read_facts(tmp_path / "x")


def test_what_the_recorder_cannot_keep_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with ampdoctor.FlightRecorder(net, optimizer, directory=tmp_path / "taken") as recorder:
        (tmp_path / "taken").write_text("a file where the folder would be, made after the recorder")
        for step in range(4):
            before = net.weight.detach().clone()
            optimizer.zero_grad()
            (net(torch.ones(2, 6)) * (float("nan") if step == 2 else 1.0)).sum().backward()
            optimizer.step()
            assert not torch.equal(before, net.weight)
    assert recorder.bundles == []
    assert [r.getMessage().partition(" in ")[0] for r in caplog.records] == ["step 2 is not recorded"]


def test_only_one_watch_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Linear(2, 2)
    with (
        ampdoctor.FlightRecorder(net, directory=tmp_path),
        ampdoctor.FlightRecorder(net, directory=tmp_path),
    ):
        pass
    assert ["watched already" in r.getMessage() for r in caplog.records] == [True]
    with pytest.raises(TypeError, match="keep must be"):
        ampdoctor.FlightRecorder(net, directory=tmp_path, keep=0)
