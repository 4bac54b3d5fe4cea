"""A config as plain values, with the line or the option each key came from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from ampdoctor.errors import ConfigError
from ampdoctor.safe_yaml import BadYaml, load, load_with_nodes

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
        _walk(node, (), document, frozenset(), set())
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
            value = load(text)
        except BadYaml as error:
            document.problems.append(f"{label}: the value is no YAML: {error}")
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


def _load(text: str, name: str) -> tuple[yaml.Node | None, dict[str, Any]]:
    try:
        values, node = load_with_nodes(text)
    except BadYaml as error:
        place = name if error.line is None else f"{name}:{error.line}"
        raise ConfigError(f"{place}: not valid YAML: {error}", error.hint) from error
    if values is None:
        raise ConfigError(f"{name} is empty", "`ampdoctor init` writes a config with every key explained.")
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else f"a single value, {str(values)[:60]!r}"
        raise ConfigError(
            f"{name}: a config is a mapping (model: ..., data: ...), this is {kind}",
            "`ampdoctor init` writes a config with every key explained.",
        )
    return node, values


_MOST_LINES = 10_000
"""Keys whose line is remembered: aliases of aliases make a short file hold billions."""


def _walk(
    node: yaml.Node, path: KeyPath, document: Document, above: frozenset[int], seen: set[tuple[int, KeyPath]]
) -> None:
    """``above``: the nodes that hold this one, which an alias may name again.

    ``seen``: what was walked already, since merges of merges lead to one node at one path a billion times.
    """
    if id(node) in above or (id(node), path) in seen or len(document.lines) > _MOST_LINES:
        return
    seen.add((id(node), path))
    above = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            document.lines.setdefault((*path, str(position)), item.start_mark.line + 1)
            _walk(item, (*path, str(position)), document, above, seen)
    elif isinstance(node, yaml.MappingNode):
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    _walk(merged, path, document, above, seen)
                continue
            if name in first_lines:
                document.problems.append(
                    f"{document.name}:{line}: {dotted((*path, name))}: "
                    f"this key is already on line {first_lines[name]}"
                )
            first_lines.setdefault(name, line)
            document.lines[(*path, name)] = line
            _walk(value, (*path, name), document, above, seen)
