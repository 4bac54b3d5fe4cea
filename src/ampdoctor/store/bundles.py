"""Bundles in folders: ``bundle.json``, and the tensors of each group as safetensors. Nothing is pickled."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ampdoctor.facts.bundle import GROUPS, Bundle, TensorFile
from ampdoctor.files import read_bounded
from ampdoctor.store.codec import FileError, from_bytes, to_bytes

SCHEMA = "ampdoctor.bundle/1"
_FACTS = "bundle.json"
_LARGEST_FACTS = 2**28
"""Bytes of ``bundle.json``: its calls and its timeline take thousandths of it."""
_NAME = re.compile(r"step-\d+(-line-\d+)?")
_PART = ".part-"
Tensors = Mapping[str, Mapping[str, Tensor]]
"""{group: {name: tensor}}"""


class BundleTooLarge(OSError):
    """The bundle would take more than it may."""


def is_bundle(path: Path) -> bool:
    """The path is a folder that holds a bundle, whole or damaged."""
    return (path / _FACTS).is_file()


def bundles_in(directory: Path) -> list[Path]:
    """The bundles in a recorder's folder, the oldest first."""
    found = [p for p in directory.iterdir() if _NAME.fullmatch(p.name) and is_bundle(p)]
    return sorted(found, key=lambda p: ((p / _FACTS).stat().st_mtime_ns, p.name))


def write_bundle(
    directory: Path, name: str, bundle: Bundle, tensors: Tensors, keep: int, most_bytes: int | None = None
) -> Path:
    """The new folder ``name`` in ``directory``; the oldest beyond ``keep`` are removed.

    The folder is whole or not there: it is written under another name. Raises OSError where it could not be
    written, BundleTooLarge beyond ``most_bytes``; the bundles that were there are untouched then.
    """
    size = sum(t.numel() * t.element_size() for group in tensors.values() for t in group.values())
    if most_bytes is not None and size > most_bytes:
        raise BundleTooLarge(
            None, f"it would take {size / 2**20:,.0f} MiB, {most_bytes / 2**20:,.0f} are allowed"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(f"{_PART}*"):  # of a process that was killed while it wrote
        if not _is_alive(left.name.rpartition("-")[2]):
            shutil.rmtree(left, ignore_errors=True)
    part = directory / f"{_PART}{name}-{os.getpid()}"
    try:
        part.mkdir()
        files = tuple(_written(part, group, tensors[group]) for group in GROUPS if tensors.get(group))
        with (part / _FACTS).open("wb") as file:
            file.write(to_bytes(replace(bundle, files=files), SCHEMA))
            file.flush()
            os.fsync(file.fileno())
        target = directory / name
        if target.exists():  # of an earlier run, or of the same step of another
            shutil.rmtree(target)
        part.rename(target)
    except SafetensorError as error:  # its way of saying that the disk is full, as well
        raise OSError(None, str(error).partition("\n")[0], str(part)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for old in bundles_in(directory)[: -max(keep, 1)]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def read_bundle(folder: Path) -> tuple[Bundle, dict[str, dict[str, Tensor]]]:
    """The bundle and its tensors by group. Raises FileError for what is none or damaged, OSError."""
    bundle = read_facts(folder)
    tensors: dict[str, dict[str, Tensor]] = {group: {} for group in GROUPS}
    for file in bundle.files:
        if file.group not in GROUPS:
            raise FileError(f"is damaged: it has tensors for {file.group!r}")
        path = folder / f"{file.group}.safetensors"
        if not path.is_file():
            raise FileError(f"is damaged: {path.name} is missing")
        if path.stat().st_size != file.bytes:
            raise FileError(
                f"is damaged: {path.name} has {path.stat().st_size:,} bytes; written were {file.bytes:,}"
            )
        if _sha256(path) != file.sha256:
            raise FileError(f"is damaged: {path.name} is not the file that was written with it")
        try:
            tensors[file.group] = load_file(path, device="cpu")
        except SafetensorError as error:
            raise FileError(f"is damaged: {path.name} is no safetensors file ({error})") from error
    return bundle, tensors


def read_facts(folder: Path) -> Bundle:
    """The bundle without its tensors. Raises as ``read_bundle`` does."""
    if folder.is_dir() and not is_bundle(folder):
        inside = bundles_in(folder)
        newest = f"; the newest of those in it is {inside[-1]}" if inside else ""
        raise FileError(f"is not a bundle: it has no {_FACTS}{newest}")
    if folder.is_file():
        raise FileError("is a file, and a bundle is a folder")
    return from_bytes(Bundle, read_bounded(folder / _FACTS, _LARGEST_FACTS), SCHEMA)


def _written(part: Path, group: str, tensors: Mapping[str, Tensor]) -> TensorFile:
    path = part / f"{group}.safetensors"
    save_file(dict(tensors), path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return TensorFile(group, path.stat().st_size, _sha256(path))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in _blocks(file.read, 2**20):
            digest.update(block)
    return digest.hexdigest()


def _blocks(read: object, size: int) -> Iterator[bytes]:
    return iter(lambda: read(size), b"")  # type: ignore[operator]


def _is_alive(pid: str) -> bool:
    with contextlib.suppress(ProcessLookupError, ValueError):
        try:
            os.kill(int(pid), 0)
        except PermissionError:  # another user's, and there
            return True
        return True
    return False
