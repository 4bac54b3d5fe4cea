"""YAML as people write it by hand, from a file that may be anything: it ends soon, and errors have a line."""

from __future__ import annotations

import re
from typing import Any

import yaml

_MOST_MERGED = 10_000
"""Keys that `<<` may copy in one document: each merge of a merge doubles them, so 300 bytes can ask for
billions."""
_WRONG_VALUE = (KeyError, AttributeError, IndexError, ValueError, TypeError, OverflowError)
"""What PyYAML's constructors raise by themselves for ``!!bool maybe``, ``!!int ""``, ``!!timestamp abc``."""


class BadYaml(ValueError):
    """Text that is no YAML; the message says why in one line."""

    def __init__(self, message: str, line: int | None, hint: str = "") -> None:
        super().__init__(message)
        self.line = line
        """From 1; None where the whole text is meant."""
        self.hint = hint
        """What to write instead; '' where nothing is known."""


def load(text: str) -> Any:
    """The value that the text holds, None for an empty one. Raises BadYaml."""
    return load_with_nodes(text)[0]


def load_with_nodes(text: str) -> tuple[Any, yaml.Node | None]:
    """The value, and the tree of nodes, which knows the line of each key. Raises BadYaml."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        value = loader.construct_document(node)
        # A second composition: construct_document resolves `<<` merges by changing its nodes.
        return value, yaml.compose(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise BadYaml(_reason(error), None if mark is None else mark.line + 1, _hint(error)) from error
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    """YAML where ``1e5`` is a number, as people write it (YAML 1.1 wants ``1.0e+5``)."""

    merged = 0

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of the node; a value that its tag cannot have is an error with a line."""
        try:
            return super().construct_object(node, deep=deep)
        except _WRONG_VALUE as error:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            problem = f"{str(node.value)[:60]!r} is no {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Nothing; ``<<`` is resolved, in a bounded number of keys."""
        super().flatten_mapping(node)
        self.merged += len(node.value)
        if self.merged > _MOST_MERGED:
            problem = "`<<` merges more keys than any config has"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _date(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    if node.value[:1].isdigit():
        try:
            return loader.construct_yaml_timestamp(node)
        except ValueError:
            return node.value  # The 30th of February: text, which the key's own check reports with its path.
    return node.value


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _date)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError):
        return ", ".join(part for part in (error.context, error.problem) if part)
    if isinstance(error, yaml.reader.ReaderError):
        return f"it holds the unprintable character #x{error.character:04x}"
    return " ".join(str(error).split())


def _hint(error: Exception) -> str:
    text = str(error)
    if "'\\t'" in text:
        return "Indent with spaces; YAML allows no tabs there."
    if "mapping values are not allowed" in text:
        return "A value that holds ': ' needs quotes; otherwise look at the indentation."
    return ""
