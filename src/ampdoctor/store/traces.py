"""Traces in files: JSON, gzipped for a name in .gz."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import Trace
from ampdoctor.files import TooLarge, read_bounded, write_atomically
from ampdoctor.store.codec import FileError, from_bytes, to_bytes

SCHEMA = "ampdoctor.trace/1"
_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST = 2**30
"""Bytes, packed or not: a model of 2,000 modules takes a tenth."""


def write_trace(trace: Trace, path: Path) -> None:
    """Nothing; the file at ``path`` is whole or untouched, never half written."""
    data = to_bytes(trace, SCHEMA)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # mtime=0: the same trace gives the same bytes
    write_atomically(path, data)


def read_trace(path: Path) -> Trace:
    """The trace in the file. Raises FileError for a foreign, damaged or newer file, OSError for no file."""
    data = read_bounded(path, _LARGEST)
    try:
        if data.startswith(_GZIP_MAGIC):
            with gzip.open(io.BytesIO(data)) as unpacked:
                data = unpacked.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"is not a trace: it cannot be unpacked ({error})") from error
    if len(data) > _LARGEST:
        raise TooLarge(path, _LARGEST)
    return parse_trace(data)


def parse_trace(data: bytes) -> Trace:
    """The trace that the JSON holds. Raises FileError."""
    trace = from_bytes(Trace, data, SCHEMA)
    _check_values(trace)
    return trace


def _check_values(trace: Trace) -> None:
    """Nothing; FileError for a format or loss scale that nothing can be reckoned with."""
    if trace.environment.dtype not in FLOAT_FORMATS:
        raise FileError(f"is damaged: environment.dtype is {trace.environment.dtype!r}, no known format")
    scales = [("environment", trace.environment.loss_scale)]
    scales += [(f"passes[{i}]", p.loss_scale) for i, p in enumerate(trace.passes)]
    scales += [(f"scale_runs[{i}]", r.loss_scale) for i, r in enumerate(trace.scale_runs)]
    for key, scale in scales:
        if not (math.isfinite(scale) and scale > 0):
            raise FileError(f"is damaged: {key}.loss_scale is {scale}, no loss scale")
