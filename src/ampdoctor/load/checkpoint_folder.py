"""Weights from a folder: Hugging Face's, shards with an index, ``torch.distributed.checkpoint``'s."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from ampdoctor.errors import LoadError
from ampdoctor.files import read_bounded
from ampdoctor.load.tensor_files import read_pickled, read_safetensors

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WHOLE = ("model.safetensors", "pytorch_model.bin")
"""What ``save_pretrained`` writes into a folder, the safer first."""

DISTRIBUTED = ".metadata"


def read_folder(folder: Path, where: str, wanted: Collection[str]) -> Any:
    """The folder's tensors by name; of a distributed checkpoint those ``wanted``, below any prefix."""
    if (folder / DISTRIBUTED).is_file():
        return _read_distributed(folder, where, wanted)
    for name in INDEXES:
        if (folder / name).is_file():
            return read_index(folder / name, where)
    for name in WHOLE:
        if (folder / name).is_file():
            return read_one(folder / name, where)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return read_one(found[0], where)
    held = ", ".join(sorted(path.name for path in folder.iterdir())[:6]) or "nothing"
    raise LoadError(
        f"{where} is a folder without a checkpoint; it holds {held}",
        f"Looked for {', '.join((*WHOLE, *INDEXES, DISTRIBUTED))}. Name the file itself.",
    )


def read_one(file: Path, where: str) -> Any:
    """What one file of weights holds."""
    return read_safetensors(file, where) if file.suffix == ".safetensors" else read_pickled(file, where)


def read_index(file: Path, where: str) -> dict[str, Any]:
    """The tensors of all the shards that an index lists, which lie beside it."""
    try:
        shards = json.loads(read_bounded(file))["weight_map"].values()
        names = [Path(shard) for shard in dict.fromkeys(shards)]
    except (ValueError, RecursionError, OSError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(
            f"{where}: {file.name} is no index of shards: {type(error).__name__}: {error}"
        ) from error
    state: dict[str, Any] = {}
    for name in names:
        if name.name != str(name):
            raise LoadError(f"{where}: {file.name} names a file outside its folder: {name}")
        state.update(read_one(file.parent / name, f"{where}: {name}"))
    return state


class _Metadata(pickle.Unpickler):
    """Reads a distributed checkpoint's table of contents, which is pickled, and nothing that runs code."""

    ALLOWED = frozenset(
        {
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
                "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
            )
        }
        | {
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            ("torch.distributed.checkpoint._fsspec_filesystem", "_StorageInfo"),
            ("torch", "Size"),
            ("torch.serialization", "_get_layout"),
            ("collections", "OrderedDict"),
            ("pathlib", "PosixPath"),
            ("pathlib", "PurePosixPath"),
            ("pathlib._local", "PosixPath"),
        }
    )  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.ALLOWED or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read_distributed(folder: Path, where: str, wanted: Collection[str]) -> dict[str, Any]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    class PlainReader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            with (folder / DISTRIBUTED).open("rb") as file:
                metadata: Metadata = _Metadata(file).load()
            if metadata.storage_meta is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    try:
        reader = PlainReader(folder)
        entries = reader.read_metadata().state_dict_metadata
        state: dict[str, Any] = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
            and any(name == own or name.endswith(f".{own}") for own in wanted)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # that is meant
            load_distributed(state, storage_reader=reader)
    except Exception as error:  # bytes that are no such checkpoint can fail anywhere in torch's reader
        raise LoadError(
            f"{where} cannot be read as a checkpoint of torch.distributed: {error}",
            "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt makes a file "
            "of it; that unpickles, so only where you trust it.",
        ) from error
    return state
