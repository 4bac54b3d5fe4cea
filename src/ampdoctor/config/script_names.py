"""What a Python file that was named in a config's place holds: the words of a command that scans it.

The file is parsed and never imported: whatever stands in it, nothing runs.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ampdoctor.errors import ConfigError
from ampdoctor.files import read_bounded

_MODELS = ("Module", "LightningModule", "PreTrainedModel")
"""Last names of the classes that models are made from."""
_ROLES = {
    "optimizer": ("optim",),
    "loss": ("loss", "criterion"),
    "data": ("loader", "batch", "data"),
    "model": ("model", "net"),
}
"""Words in the names of functions and variables, and what such a one gives; the first that fits holds."""
_SHOWN = 6
"""Names of a kind that are listed."""


@dataclass
class _Names:
    """The names of a file's top level by what they could be, the likeliest last."""

    model: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    loss: list[str] = field(default_factory=list)
    optimizer: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    needs: dict[str, list[str]] = field(default_factory=dict)
    """Of each name, the arguments that a call must give."""


def not_a_config(path: Path) -> ConfigError:
    """The error for a ``.py`` where a config belongs; its hint lists what could be what."""
    try:
        tree = ast.parse(read_bounded(path))
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        return ConfigError(
            f"there is no file {path}", f"Did you mean {path.parent / near[0]}?" if near else ""
        )
    except OSError as error:
        return ConfigError(f"{path} cannot be read: {error.strerror or error}")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # what ast.parse raises
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return ConfigError(f"{path} is a Python script, not a config, and does not parse{line}")
    return ConfigError(f"{path} is a Python script, not a config", "\n".join(_hint(tree, path)))


def _hint(tree: ast.Module, path: Path) -> Iterator[str]:
    names = _names(tree)
    if _runs_when_imported(tree):
        yield (
            "its top level runs when it is imported, so it is a script for `run`; what stands below "
            '`if __name__ == "__main__":` is not, and its functions can be named'
        )
        return
    roles = {"model": names.model, "data": names.data, "loss": names.loss, "optimizer": names.optimizer}
    lists = [f"{role}: {_listed(names, found)}" for role, found in roles.items() if found]
    if lists:
        yield f"in {path.name} could be the " + "; ".join(lists)
    if names.others:
        yield f"{path.name} {'also ' if lists else ''}defines {_listed(names, names.others)}"
    callable_ = {
        role: [n for n in found if role in ("loss", "optimizer") or not names.needs.get(n)]
        for role, found in roles.items()
    }
    model = callable_["model"][-1:] or ["build_model"]
    data = callable_["data"][-1:] or ["build_batch"]
    loss = f"{path}:{callable_['loss'][-1]}" if callable_["loss"] else "cross_entropy"
    missing = [n for n, of in ((model[0], "model"), (data[0], "data")) if not callable_[of]]
    write = f", with {' and '.join(f'{name}()' for name in missing)} written" if missing else ""
    options = f"--model {path}:{model[0]} --data {path}:{data[0]} --loss {loss}"
    yield f"a model in it is scanned with `{options}`{write}"


def _listed(names: _Names, found: list[str]) -> str:
    shown = [f"{n}({', '.join(names.needs[n])})" if names.needs.get(n) else n for n in found[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def _names(tree: ast.Module) -> _Names:
    names = _Names()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    models = _model_classes(classes)
    parts = {n.id for node in classes for n in ast.walk(node) if isinstance(n, ast.Name)} & models
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            if node.name in models:
                loss = "loss" in node.name.lower()
                names.needs[node.name] = _needed_by_class(node)
                if loss:
                    names.loss.append(node.name)
                elif node.name in parts:  # made by another class of the file
                    names.model.insert(0, node.name)
                else:
                    names.model.append(node.name)
            else:
                names.others.append(node.name)
        elif isinstance(node, ast.FunctionDef):
            names.needs[node.name] = _needed(node.args)
            _sort_in(names, node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and _role(target.id):
                    _sort_in(names, target.id)
    return names


def _sort_in(names: _Names, name: str) -> None:
    role = _role(name)
    found: list[str] = getattr(names, role) if role else names.others
    found.append(name)


def _role(name: str) -> str:
    lower = name.lower()
    if lower.startswith(("train", "eval", "test", "valid", "save", "load_model", "log", "print")):
        return ""
    return next((role for role, parts in _ROLES.items() if any(part in lower for part in parts)), "")


def _model_classes(classes: list[ast.ClassDef]) -> set[str]:
    """The classes that inherit from ``nn.Module``, at any distance within the file."""
    found: set[str] = set()
    while True:
        more = {
            node.name
            for node in classes
            if any(_last_name(base) in found or _last_name(base).endswith(_MODELS) for base in node.bases)
        }
        if more == found:
            return found
        found = more


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _needed(arguments: ast.arguments, skip: int = 0) -> list[str]:
    """The arguments without a default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = positional[skip : len(positional) - len(arguments.defaults)]
    keywords = [a for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    return [argument.arg for argument in (*needed, *keywords)]


def _needed_by_class(node: ast.ClassDef) -> list[str]:
    init = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    return _needed(init.args, skip=1) if init else []


def _runs_when_imported(tree: ast.Module) -> bool:
    """Whether the top level has a loop, or calls ``backward`` or a function of the file without using it."""
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, (ast.For, ast.While)):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if _last_name(function) == "backward" or (isinstance(function, ast.Name) and function.id in own):
                return True
    return False
