"""The batches that a config names.

One batch is: a tensor, a mapping, a tuple, a dataclass, anything with a ``.to`` method, a list with a tensor
in it (what a DataLoader's default collate makes), and a list of plain values such as texts. A list of
mappings, tuples, lists or dataclasses is a list of batches. Generators, DataLoaders and other iterables give
one batch after the other, whatever these are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ampdoctor.config import Config
from ampdoctor.config.workload import DataFile, DataSynthetic, DataTarget, SyntheticTensor
from ampdoctor.errors import LoadError
from ampdoctor.load import targets
from ampdoctor.load.describe import describe
from ampdoctor.load.tensor_files import read_npz, read_pickled, read_safetensors


def load_batches(config: Config) -> tuple[Any, ...]:
    """The first ``batches`` batches of the config's target, file or synthetic tensors; at least one."""
    data = config.data
    if isinstance(data, DataSynthetic):
        return _synthetic(data, config.seed)
    if isinstance(data, DataFile):
        where = f"data.file: {data.file}"
        return first_batches(_content(config, data), data.batches, where)
    where = f"data.target: {data.target}"
    value = _value(config, data)
    with targets.user_code(where):  # Iterating runs the user's code, too.
        return first_batches(value, data.batches, where)


def is_one_batch(value: Any) -> bool:
    """Whether ``value`` is a batch, rather than an iterable of batches."""
    if isinstance(value, list):
        if any(_is_tensor(item) for item in value):
            return True
        return bool(value) and not any(isinstance(item, list) or _is_record(item) for item in value)
    if _is_tensor(value) or _is_record(value) or isinstance(value, (str, bytes)):
        return True
    return not isinstance(value, Iterable)


def _is_record(value: Any) -> bool:
    if isinstance(value, (Mapping, tuple)) or callable(getattr(value, "to", None)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or hasattr(value, "__array__")


def first_batches(value: Any, count: int, where: str) -> tuple[Any, ...]:
    """At most ``count`` batches of an iterable, or the one batch that ``value`` is; LoadError for none."""
    if isinstance(value, torch.utils.data.Dataset) and not isinstance(
        value, torch.utils.data.IterableDataset
    ):
        raise LoadError(
            f"{where} is a Dataset of single samples, not of batches",
            "Return torch.utils.data.DataLoader(dataset, batch_size=8).",
        )
    batches = (value,) if is_one_batch(value) else tuple(itertools.islice(value, count))
    if not batches:
        raise LoadError(f"{where} gives no batch, but {describe(value)}")
    for position, batch in enumerate(batches):
        is_empty = isinstance(batch, (Mapping, tuple, list)) and not batch
        if batch is None or is_empty or callable(batch) or isinstance(batch, (str, bytes, int, float)):
            which = f"batch {position} is" if len(batches) > 1 else "the batch is"
            hint = "Is a `return` missing?" if batch is None else "A batch is tensors in any nesting."
            raise LoadError(f"{where}: {which} {describe(batch)}", hint)
    return batches


def _value(config: Config, data: DataTarget) -> Any:
    found = targets.resolve(data.target, config.directory, "data.target")
    if not isinstance(found, type) and (isinstance(found, Iterable) or not callable(found)):
        if data.kwargs:
            raise LoadError(f"data.kwargs: {data.target} is {describe(found)} and takes no arguments")
        return found
    return targets.call(found, data.target, "data", data.kwargs)


def _content(config: Config, data: DataFile) -> Any:
    file, where = config.path(data.file), f"data.file: {data.file}"
    if file.suffix in (".pt", ".pth"):
        return read_pickled(file, where)
    if file.suffix == ".safetensors":
        return read_safetensors(file, where)
    if file.suffix == ".npz":
        arrays = read_npz(file, where)
        # numpy.savez(file, x, y) names its arrays arr_0, arr_1: they were given in an order, not by name.
        if list(arrays) == [f"arr_{n}" for n in range(len(arrays))]:
            return tuple(arrays.values())
        return arrays
    raise LoadError(f"{where} is no .pt, .pth, .npz or .safetensors file")


def _synthetic(data: DataSynthetic, seed: int) -> tuple[dict[str, torch.Tensor], ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        {name: _random(tensor, generator) for name, tensor in data.synthetic.items()}
        for _ in range(data.batches)
    )


def _random(tensor: SyntheticTensor, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if tensor.dtype == "bool":
        return torch.randint(0, 2, tensor.shape, generator=generator).bool()
    low, high = tensor.range
    if "int" in tensor.dtype:
        return torch.randint(int(low), int(high), tensor.shape, generator=generator).to(dtype)
    uniform = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    return (low + (high - low) * uniform).to(dtype)
