"""Files: read whole, up to a size; written whole, or left as they were."""

from __future__ import annotations

import os
import threading
from pathlib import Path

LARGEST_TEXT = 8 * 2**20
"""Bytes of a config, a plan or a baseline: a thousand times what people write, and read in no time."""


class TooLarge(OSError):
    """There is more in the file than anything it could be."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(None, f"it holds more than {most // 2**20:,} MiB", str(path))


def read_bounded(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """What the file holds, a pipe or a device as well. Raises OSError, and TooLarge beyond ``most`` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except ValueError as error:  # a NUL in the name
        raise OSError(None, str(error), str(path)) from error
    if len(data) > most:
        raise TooLarge(path, most)
    return data


def write_atomically(path: Path, data: bytes) -> None:
    """Nothing; ``data`` replaces the file in one step. A device or pipe is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = path.resolve()  # a link stays a link
    # Not the target's own name with more: that one may be as long as a name can be.
    part = target.with_name(f".ampdoctor.{os.getpid()}.{threading.get_ident()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
