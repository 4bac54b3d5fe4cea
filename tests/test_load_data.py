"""Batches: from the user's code, from files, and out of thin air."""

from __future__ import annotations

import dataclasses
import pickle
from collections import UserDict, namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from ampdoctor.load.data import is_one_batch
from load_helpers import load_failure, load_in, write

X, Y = torch.zeros(2, 3), torch.zeros(2)
Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass
class Record:
    x: torch.Tensor


class Movable:
    def to(self, device: str) -> Movable:
        return self

    def __iter__(self) -> Any:
        yield 1


@pytest.mark.parametrize(
    "value",
    [
        X,
        (X, Y),
        [X, Y],
        [X, {"boxes": Y}],
        {"x": X},
        UserDict(x=X),
        Pair(X, Y),
        Record(X),
        Movable(),
        numpy.zeros(2),
        [numpy.zeros(2), numpy.zeros(2)],
        ["a text", "another"],
        torch.nn.utils.rnn.pack_sequence([Y]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_one_batch(value: object) -> None:
    assert is_one_batch(value)


@pytest.mark.parametrize(
    "value",
    [
        [(X, Y), (X, Y)],
        [{"x": X}],
        [[X, Y]],
        [Record(X)],
        [],
        iter([X]),
        (x for x in [X]),
        DataLoader(TensorDataset(X, Y)),
        range(3),
    ],
    ids=lambda v: type(v).__name__,
)
def test_an_iterable_of_batches(value: object) -> None:
    assert not is_one_batch(value)


def load_data(folder: Path, code: str, data: str = "{target: data.py:data}") -> tuple[Any, ...]:
    write(folder, "models.py", "import torch\ndef build_model():\n    return torch.nn.Identity()")
    write(folder, "data.py", f"import torch\n{code}")
    return load_in(folder, f"model: {{target: models.py:build_model}}\ndata: {data}\nloss: none").batches


def data_failure(folder: Path, code: str, data: str = "{target: data.py:data}") -> tuple[str, str]:
    write(folder, "models.py", "import torch\ndef build_model():\n    return torch.nn.Identity()")
    write(folder, "data.py", f"import torch\n{code}")
    error = load_failure(folder, f"model: {{target: models.py:build_model}}\ndata: {data}\nloss: none")
    return error.message, error.hint


def test_a_function_s_batch_with_kwargs(tmp_path: Path) -> None:
    code = "def data(size, value=1.0):\n    return {'x': torch.full((size,), value)}"
    (batch,) = load_data(tmp_path, code, "{target: data.py:data, kwargs: {size: 2, value: 5}}")
    assert torch.equal(batch["x"], torch.tensor([5.0, 5.0]))


def test_the_first_batches_of_an_endless_generator(tmp_path: Path) -> None:
    code = "def data():\n    n = 0\n    while True:\n        yield torch.tensor(n)\n        n += 1"
    assert load_data(tmp_path, code, "{target: data.py:data, batches: 3}") == (0, 1, 2)


def test_fewer_batches_than_asked_for_are_all(tmp_path: Path) -> None:
    code = "def data():\n    return [(torch.tensor(1), torch.tensor(2))]"
    assert load_data(tmp_path, code, "{target: data.py:data, batches: 9}") == ((1, 2),)


def test_a_data_loader_gives_its_first_batch(tmp_path: Path) -> None:
    code = (
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "data = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)"
    )
    ((batch,),) = load_data(tmp_path, code)
    assert batch.tolist() == [0, 1]


def test_a_value_in_the_module_is_a_batch(tmp_path: Path) -> None:
    (batch,) = load_data(tmp_path, "data = (torch.tensor(1), torch.tensor(2))")
    assert batch == (1, 2)


def test_data_begins_from_the_seed_whatever_the_model_drew(tmp_path: Path) -> None:
    code = "import random, numpy\ndef data():\n    return torch.rand(1), random.random(), numpy.random.rand()"
    write(
        tmp_path,
        "drawing.py",
        "import torch\ndef build(n):\n    torch.rand(n)\n    return torch.nn.Identity()",
    )
    write(tmp_path, "data.py", f"import torch\n{code}")
    batches = [
        load_in(
            tmp_path,
            f"""
            model: {{target: drawing.py:build, kwargs: {{n: {n}}}}}
            data: {{target: data.py:data}}
            loss: none
            seed: 5
            """,
        ).batches[0]
        for n in (1, 2)
    ]
    assert batches[0] == batches[1]
    assert batches[0][0] == torch.rand(1, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        ("def data():\n    pass", "data.target: data.py:data: the batch is None", "Is a `return` missing?"),
        ("def data():\n    return []", "data.target: data.py:data gives no batch, but an empty list", ""),
        (
            "def data():\n    return {}",
            "data.target: data.py:data: the batch is an empty dict",
            "A batch is tensors in any nesting.",
        ),
        (
            "def data():\n    return 'batch.pt'",
            "data.target: data.py:data: the batch is the text 'batch.pt'",
            "A batch is tensors in any nesting.",
        ),
        (
            "def data():\n    return [(torch.ones(1),), ()]",
            "data.target: data.py:data: batch 1 is an empty tuple",
            "A batch is tensors in any nesting.",
        ),
        (
            "data = torch.utils.data.TensorDataset(torch.ones(2))",
            "data.target: data.py:data is a Dataset of single samples, not of batches",
            "Return torch.utils.data.DataLoader(dataset, batch_size=8).",
        ),
        (
            "def data(path):\n    pass",
            "data.target: data.py:data needs path",
            "Give it in the config: data.kwargs: {path: ...}",
        ),
        (
            "def data():\n    yield torch.ones(1)\n    raise OSError('disk full')",
            "data.target: data.py:data raised OSError: disk full",
            "",
        ),
    ],
)
def test_what_is_no_batch_says_what_it_is(tmp_path: Path, code: str, message: str, hint: str) -> None:
    assert data_failure(tmp_path, code, "{target: data.py:data, batches: 4}") == (message, hint)


def load_file(folder: Path, name: str, batches: int = 1) -> tuple[Any, ...]:
    return load_data(folder, "", f"{{file: {name}, batches: {batches}}}")


def test_a_torch_file_holds_a_batch_or_several(tmp_path: Path) -> None:
    torch.save({"x": torch.tensor(1)}, tmp_path / "one.pt")
    torch.save([(torch.tensor(1), torch.tensor(2)), (torch.tensor(3), torch.tensor(4))], tmp_path / "two.pt")
    assert load_file(tmp_path, "one.pt") == ({"x": 1},)
    assert load_file(tmp_path, "two.pt", batches=2) == ((1, 2), (3, 4))


def test_named_arrays_are_a_dict_and_unnamed_ones_a_tuple(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "named.npz", x=numpy.array([1.5], dtype=numpy.float32))
    numpy.savez(tmp_path / "unnamed.npz", numpy.array([1]), numpy.array([2]))
    (named,) = load_file(tmp_path, "named.npz")
    assert named["x"].dtype == torch.float32 and named["x"].tolist() == [1.5]
    (unnamed,) = load_file(tmp_path, "unnamed.npz")
    assert isinstance(unnamed, tuple) and [t.item() for t in unnamed] == [1, 2]


def test_a_safetensors_file_is_a_dict(tmp_path: Path) -> None:
    save_file({"x": torch.tensor([1.0])}, tmp_path / "batch.safetensors")
    assert load_file(tmp_path, "batch.safetensors") == ({"x": torch.tensor([1.0])},)


class Malicious:
    """Unpickled, it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


def test_a_malicious_pickle_is_refused_and_does_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "it_ran"
    torch.save({"x": torch.ones(1), "more": Malicious(proof)}, tmp_path / "zipped.pt")
    with (tmp_path / "plain.pt").open("wb") as file:
        pickle.dump(Malicious(proof), file, protocol=2)
    for name in ("zipped.pt", "plain.pt"):
        message, hint = data_failure(tmp_path, "", f"{{file: {name}}}")
        assert message.startswith(f"data.file: {name} holds more than plain tensors")
        assert message.endswith("; reading it could run code, so it was not read")
        assert hint.startswith("Save only tensors, dicts, lists and tuples: torch.save(batch, file)")
        assert not proof.exists()
    pickle.loads((tmp_path / "plain.pt").read_bytes())
    assert proof.exists()  # The file does what the test says it would.


def test_a_pickled_array_in_an_npz_is_refused(tmp_path: Path) -> None:
    proof = tmp_path / "it_ran"
    numpy.savez(tmp_path / "batch.npz", x=numpy.array([Malicious(proof)], dtype=object))
    message, _ = data_failure(tmp_path, "", "{file: batch.npz}")
    assert message == (
        "data.file: batch.npz cannot be read as arrays of numbers: "
        "ValueError: Object arrays cannot be loaded when allow_pickle=False"
    )
    assert not proof.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("batch.pt", None, "data.file: batch.pt is not there (looked in {folder})"),
        ("batch.csv", b"1,2", "data.file: batch.csv is no .pt, .pth, .npz or .safetensors file"),
        ("batch.pt", b"", "data.file: batch.pt cannot be read as a file of torch.save: EOFError"),
        ("batch.npz", b"PK", "data.file: batch.npz is no archive of numpy.savez"),
        (
            "batch.safetensors",
            b"hello there",
            "data.file: batch.safetensors cannot be read as safetensors: "
            "SafetensorError: Error while deserializing header: header too large",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert data_failure(tmp_path, "", f"{{file: {name}}}")[0] == message.replace("{folder}", str(tmp_path))


def test_synthetic_tensors_have_their_shape_dtype_and_range(tmp_path: Path) -> None:
    (batch,) = load_data(
        tmp_path,
        "",
        """
          synthetic:
            image: {shape: [200, 3], low: 2, high: 4}
            half: {shape: [5], dtype: float16}
            ids: {shape: [200], dtype: int64, low: 3, high: 6}
            bytes: {shape: [200], dtype: uint8, high: 256}
            mask: {shape: [200], dtype: bool}
            number: {shape: []}
        """,
    )
    assert {name: (tuple(t.shape), t.dtype) for name, t in batch.items()} == {
        "image": ((200, 3), torch.float32),
        "half": ((5,), torch.float16),
        "ids": ((200,), torch.int64),
        "bytes": ((200,), torch.uint8),
        "mask": ((200,), torch.bool),
        "number": ((), torch.float32),
    }
    assert 2 <= batch["image"].min() < 2.1 and 3.9 < batch["image"].max() <= 4
    assert set(batch["ids"].tolist()) == {3, 4, 5}
    assert set(batch["mask"].tolist()) == {True, False}
    assert batch["bytes"].max() > 200


def test_synthetic_batches_come_from_the_seed_alone_and_differ(tmp_path: Path) -> None:
    data = "{synthetic: {x: {shape: [4]}}, batches: 2}"
    first, second = load_data(tmp_path, "", data)
    torch.rand(3)
    again, _ = load_data(tmp_path, "", data)
    assert torch.equal(first["x"], again["x"])
    assert not torch.equal(first["x"], second["x"])
