"""A config as plain values, with the line or the option each key came from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from ampdoctor.errors import ConfigError

KeyPath = tuple[str, ...]
"""The keys down to a value; positions in a list as digits."""


@dataclass
class Document:
    """What was written, and where."""

    name: str
    """The file as the user named it; '' where there is none."""
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """The line of each key in the file."""
    options: dict[KeyPath, str] = field(default_factory=dict)
    """The command-line option that set a key."""
    problems: list[str] = field(default_factory=list)
    """What was already wrong on the way here."""

    def where(self, path: KeyPath) -> str:
        """``config.yaml:12: precision.dtype``, or ``--set precision.dtype=fp16`` where that set it."""
        for length in range(len(path), -1, -1):
            option = self.options.get(path[:length])
            if option is not None:
                return option if length == len(path) else f"{option}: {dotted(path)}"
        if not self.name:
            return dotted(path)
        line = next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), None)
        place = self.name if line is None else f"{self.name}:{line}"
        return f"{place}: {dotted(path)}" if path else place


def dotted(path: KeyPath) -> str:
    """``limits."decoder.*".headroom_bits``: the path as ``--set`` takes it."""
    return ".".join(f'"{part}"' if "." in part else part for part in path)


def read_yaml(text: str, name: str) -> Document:
    """The document that ``text`` holds; ConfigError where it is no YAML mapping."""
    document = Document(name)
    node, document.values = _load(text, name)
    if node is not None:
        _walk(node, (), document, set())
    return document


def override(document: Document, options: Sequence[str]) -> None:
    """Writes each ``key.path=value`` into the document; the value is YAML. Mistakes join its problems."""
    for option in options:
        label = f"--set {option}"
        key, equals, text = option.partition("=")
        path = _split(key)
        if not equals or not path:
            document.problems.append(f"{label}: write KEY.PATH=VALUE, such as precision.loss_scale=1024")
            continue
        try:
            value = yaml.load(text, _Loader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            document.problems.append(f"{label}: the value is no YAML: {_reason(error)}")
            continue
        for known in [k for k in document.options if k[: len(path)] == path]:
            del document.options[known]
        document.options[path] = label
        document.values = _written(document.values, path, value)


def _written(node: Any, path: KeyPath, value: Any) -> Any:
    # A copy along the path: YAML aliases share one object between keys, and only this key is meant.
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(node, list) and first.isdigit() and int(first) < len(node):
        position = int(first)
        return [*node[:position], _written(node[position], rest, value), *node[position + 1 :]]
    mapping = node if isinstance(node, Mapping) else {}
    return {**mapping, first: _written(mapping.get(first), rest, value)}


def _split(key: str) -> KeyPath:
    parts = re.findall(r'"([^"]+)"|([^."]+)', key)
    path = tuple((quoted or plain).strip() for quoted, plain in parts)
    return path if all(path) else ()


class _Loader(yaml.SafeLoader):
    """YAML where ``1e5`` is a number, as people write it (YAML 1.1 wants ``1.0e+5``)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _date(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    try:
        return loader.construct_yaml_timestamp(node)
    except ValueError:
        return node.value  # The 30th of February: text, which the key's own check reports with its path.


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _date)


def _load(text: str, name: str) -> tuple[yaml.Node | None, dict[str, Any]]:
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        values = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = name if mark is None else f"{name}:{mark.line + 1}"
        raise ConfigError(f"{place}: not valid YAML: {_reason(error)}", _yaml_hint(error)) from error
    finally:
        if loader is not None:
            loader.dispose()
    if values is None:
        raise ConfigError(f"{name} is empty", "`ampdoctor init` writes a config with every key explained.")
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else f"a single value, {str(values)[:60]!r}"
        raise ConfigError(
            f"{name}: a config is a mapping (model: ..., data: ...), this is {kind}",
            "`ampdoctor init` writes a config with every key explained.",
        )
    # A second composition: construct_document resolves `<<` merges by changing its nodes.
    return yaml.compose(text, _Loader), values


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return ", ".join(part for part in (error.context, error.problem) if part)
    if isinstance(error, yaml.reader.ReaderError):
        return f"it holds the unprintable character #x{error.character:04x}"
    return str(error)


def _yaml_hint(error: Exception) -> str:
    text = str(error)
    if "'\\t'" in text:
        return "Indent with spaces; YAML allows no tabs there."
    if "mapping values are not allowed" in text:
        return "A value that holds ': ' needs quotes; otherwise look at the indentation."
    return ""


_MOST_LINES = 10_000
"""Keys whose line is remembered: aliases of aliases make a short file hold billions."""


def _walk(node: yaml.Node, path: KeyPath, document: Document, above: set[int]) -> None:
    if id(node) in above or len(document.lines) > _MOST_LINES:  # `above`: an alias to a node that holds it.
        return
    above = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            document.lines.setdefault((*path, str(position)), item.start_mark.line + 1)
            _walk(item, (*path, str(position)), document, above)
    elif isinstance(node, yaml.MappingNode):
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    _walk(merged, path, document, above)
                continue
            if name in first_lines:
                document.problems.append(
                    f"{document.name}:{line}: {dotted((*path, name))}: "
                    f"this key is already on line {first_lines[name]}"
                )
            first_lines.setdefault(name, line)
            document.lines[(*path, name)] = line
            _walk(value, (*path, name), document, above)
