"""The JSON Schema of what ``facts.plain.to_json`` makes of a frozen dataclass, read off its type hints."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

Json = dict[str, Any]

NUMBER: Json = {
    "description": "A number. NaN and the infinities, which JSON has not, are words.",
    "anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
}


class Definitions:
    """The schemas of the dataclasses met so far, by name, for ``$defs``."""

    def __init__(self) -> None:
        self.found: dict[str, Json] = {"number": NUMBER}

    def of(self, hint: Any) -> Json:
        """The schema of a type hint. Raises TypeError for one that ``to_json`` has no form for."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if is_dataclass(hint) and isinstance(hint, type):
            return self._reference(hint)
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin in (typing.Union, types.UnionType):
            words = [a for a in arguments if typing.get_origin(a) is typing.Literal]
            if words and set(arguments) == {words[0], types.NoneType}:
                return {"enum": [*typing.get_args(words[0]), None]}
            return {"anyOf": [self.of(argument) for argument in arguments]}
        if origin is tuple and arguments[-1] is Ellipsis:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is tuple:
            items = [self.of(argument) for argument in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(*arguments)
        if hint in _SCALARS:
            return dict(_SCALARS[hint])
        raise TypeError(f"no schema for {hint!r}")

    def used_by(self, schema: Json) -> dict[str, Json]:
        """Those that the schema refers to, also through others: classes met on the way are left out."""
        used: dict[str, Json] = {}
        waiting = references(schema)
        while waiting:
            name = waiting.pop()
            if name not in used:
                used[name] = self.found[name]
                waiting |= references(used[name])
        return dict(sorted(used.items()))

    def properties(self, cls: type) -> dict[str, Json]:
        """{field: its schema, with its docstring}, in the order of the class."""
        return self.fields(cls, *(f.name for f in fields(cls)))

    def fields(self, cls: type, *names: str) -> dict[str, Json]:
        """The same of these fields alone."""
        hints = typing.get_type_hints(cls)
        docs = field_docs(cls)
        return {name: described(self.of(hints[name]), docs.get(name, "")) for name in names}

    def _reference(self, cls: type) -> Json:
        name = cls.__name__
        if name not in self.found:
            self.found[name] = {}  # a class may hold itself
            self.found[name] = whole(self.properties(cls), class_doc(cls))
        return {"$ref": f"#/$defs/{name}"}

    def _mapping(self, key: Any, item: Any) -> Json:
        schema: Json = {"type": "object"}
        if key is int:
            schema["propertyNames"] = {"pattern": r"^-?\d+$"}
        if item is not Any:
            schema["additionalProperties"] = self.of(item)
        return schema


_SCALARS: dict[Any, Json] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"$ref": "#/$defs/number"},
    str: {"type": "string"},
    types.NoneType: {"type": "null"},
    Any: {},
}


def references(schema: Any) -> set[str]:
    """Names in ``$defs`` that the schema itself refers to."""
    if isinstance(schema, dict):
        here = {schema["$ref"].removeprefix("#/$defs/")} if isinstance(schema.get("$ref"), str) else set()
        return here.union(*(references(part) for part in schema.values()))
    return set().union(*(references(part) for part in schema)) if isinstance(schema, list) else set()


def whole(properties: Mapping[str, Json], doc: str = "") -> Json:
    """The schema of an object that has all of these keys, and may have more in a later version."""
    return described({"type": "object", "properties": dict(properties), "required": list(properties)}, doc)


def described(schema: Json, doc: str) -> Json:
    """The schema with a description first, in Markdown and in JSON's words; unchanged for no words."""
    words = re.sub(r"\bNone\b", "null", " ".join(doc.split()).replace("``", "`"))
    return {"description": words, **schema} if words else schema


def nullable(schema: Json) -> Json:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def class_doc(cls: type) -> str:
    """The first paragraph of a class's docstring."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]


def field_docs(cls: type) -> dict[str, str]:
    """{field: the docstring under it}, from the source: Python itself forgets those."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for line, following in zip(body.body, body.body[1:], strict=False):
        match line, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = doc
    return docs
