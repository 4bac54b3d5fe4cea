"""Traces in files: the one file format ampdoctor owns. JSON with a version, gzipped for a name in .gz.

The codec follows the type hints of the frozen dataclasses: a field added with a default stays readable
in older files, and a key this version does not know is passed over. Non-finite numbers, which JSON has
none of, are the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import gzip
import json
import math
import os
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ampdoctor.facts.floats import FLOAT_FORMATS
from ampdoctor.facts.trace import Trace

FORMAT = "ampdoctor.trace"
VERSION = 1
"""Of the file format."""
_GZIP_MAGIC = b"\x1f\x8b"
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

T = TypeVar("T")


class TraceFileError(ValueError):
    """A file that is not a trace this version can read; the message says why."""


def write_trace(trace: Trace, path: Path) -> None:
    """Nothing; the file at ``path`` is whole or untouched, never half written."""
    document = {"schema": f"{FORMAT}/{VERSION}", **to_json(trace)}
    data = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # mtime=0: the same trace gives the same bytes
    write_atomically(path, data)


def read_trace(path: Path) -> Trace:
    """The trace in the file. Raises TraceFileError for a foreign, damaged or newer file."""
    data = path.read_bytes()
    try:
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        document = json.loads(data)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise TraceFileError(f"{path} is not a trace: it holds no readable JSON ({error})") from error
    _check_schema(document, path)
    try:
        trace = from_json(Trace, document)
        _check_values(trace)
    except TraceFileError as error:
        raise TraceFileError(f"{path} is damaged: {error}") from error
    return trace


def write_atomically(path: Path, data: bytes) -> None:
    """Nothing; ``data`` replaces the file in one step. A device or pipe is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = path.resolve()  # a link stays a link
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def to_json(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers and None, ready for ``json.dumps(allow_nan=False)``."""
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _non_finite_word(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in a trace")


def from_json(cls: type[T], document: Any) -> T:
    """The dataclass that ``to_json`` made this of. Raises TraceFileError naming the key that is wrong."""
    hint: Any = cls
    return typing.cast(T, _decoder(hint)(document, ""))


def _non_finite_word(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _check_schema(document: Any, path: Path) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    name, _, version = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    if name != FORMAT:
        found = f'its "schema" is {schema!r}' if schema is not None else 'it has no "schema"'
        raise TraceFileError(f'{path} is not a trace ("{FORMAT}/{VERSION}" was expected): {found}')
    if version != str(VERSION):
        raise TraceFileError(
            f'{path} is a trace of another version ("{schema}"); this ampdoctor reads "{FORMAT}/{VERSION}"'
        )


def _check_values(trace: Trace) -> None:
    """Nothing; TraceFileError for a format or loss scale that nothing can be reckoned with."""
    if trace.environment.dtype not in FLOAT_FORMATS:
        raise TraceFileError(f"environment.dtype is {trace.environment.dtype!r}, no known format")
    scales = [("environment", trace.environment.loss_scale)]
    scales += [(f"passes[{i}]", p.loss_scale) for i, p in enumerate(trace.passes)]
    scales += [(f"scale_runs[{i}]", r.loss_scale) for i, r in enumerate(trace.scale_runs)]
    for key, scale in scales:
        if not (math.isfinite(scale) and scale > 0):
            raise TraceFileError(f"{key}.loss_scale is {scale}, no loss scale")


Decode = Callable[[Any, str], Any]


@cache
def _decoder(hint: Any) -> Decode:
    """A function (json value, key path) -> value of the hinted type."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_decoder(hint)
    if origin is typing.Literal:
        return _word_decoder(arguments)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (a for a in arguments if a is not types.NoneType)
        decode_inner = _decoder(inner)
        return lambda value, key: None if value is None else decode_inner(value, key)
    if origin is tuple:
        return _tuple_decoder(_decoder(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(arguments[0], _decoder(arguments[1]))
    if hint is float:
        return _decode_float
    if hint in (bool, int, str):
        return _scalar_decoder(hint)
    raise TypeError(f"no codec for {hint!r}")


def _dataclass_decoder(cls: type) -> Decode:
    hints = typing.get_type_hints(cls)
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    decoders: dict[str, Decode] = {}

    def decode(value: Any, key: str) -> Any:
        if not decoders:  # filled on first use: a type may hold itself
            decoders.update({f.name: _decoder(hints[f.name]) for f in fields(cls)})
        if not isinstance(value, dict):
            raise TraceFileError(f"{key or 'the document'} should be an object, not {_kind(value)}")
        missing = sorted(required - value.keys())
        if missing:
            raise TraceFileError(f"{_join(key, missing[0])} is missing")
        known = {name: decoders[name](value[name], _join(key, name)) for name in decoders if name in value}
        return cls(**known)

    return decode


def _tuple_decoder(decode_item: Decode) -> Decode:
    def decode(value: Any, key: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise TraceFileError(f"{key} should be a list, not {_kind(value)}")
        return tuple(decode_item(item, f"{key}[{i}]") for i, item in enumerate(value))

    return decode


def _mapping_decoder(key_type: type, decode_item: Decode) -> Decode:
    def decode(value: Any, key: str) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise TraceFileError(f"{key} should be an object, not {_kind(value)}")
        try:
            return {key_type(name): decode_item(item, _join(key, name)) for name, item in value.items()}
        except TraceFileError:
            raise
        except ValueError as error:
            raise TraceFileError(f"{key} has a key that is no {key_type.__name__}") from error

    return decode


def _decode_float(value: Any, key: str) -> float:
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceFileError(f"{key} should be a number, not {_kind(value)}")
    try:
        return float(value)
    except OverflowError as error:  # JSON sets whole numbers no limit
        raise TraceFileError(f"{key} should be a number, not one with hundreds of digits") from error


def _scalar_decoder(cls: type) -> Decode:
    def decode(value: Any, key: str) -> Any:
        # bool is an int in Python, yet true is no count
        if not isinstance(value, cls) or (cls is int and isinstance(value, bool)):
            raise TraceFileError(f"{key} should be {_NAMES[cls]}, not {_kind(value)}")
        return value

    return decode


def _word_decoder(words: tuple[str, ...]) -> Decode:
    def decode(value: Any, key: str) -> Any:
        if value not in words:
            raise TraceFileError(f"{key} should be one of {', '.join(words)}, not {_kind(value)}")
        return value

    return decode


_NAMES: dict[type, str] = {bool: "true or false", int: "a whole number", str: "a string"}


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return names.get(type(value), type(value).__name__)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
