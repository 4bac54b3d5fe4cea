"""Targets: ``file.py:name`` and ``package.module:name``, found, imported and called."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from ampdoctor.errors import AmpDoctorError, LoadError, is_out_of_memory, out_of_memory
from ampdoctor.load.describe import describe, listed
from ampdoctor.load.traceback import OWN_FOLDER, message_of, user_traceback

# Python has one sys.path and one sys.modules; this is what the latest load put there.
_paths: list[str] = []
_modules: set[str] = set()


@contextlib.contextmanager
def imported_anew(directory: Path) -> Iterator[None]:
    """Inside, the user's modules are imported afresh, also those an earlier load imported.

    ``directory`` and the folders of the targets' files come first on ``sys.path``, the current folder last.
    They stay there until the next load, for imports inside a forward pass. Modules that somebody else
    imported are used as they are.
    """
    for name in _modules:
        sys.modules.pop(name, None)
    for path in _paths:
        with contextlib.suppress(ValueError):
            sys.path.remove(path)
    _paths.clear()
    _modules.clear()
    importlib.invalidate_caches()
    linecache.checkcache()  # Or the report shows lines of a file as it was at an earlier load.
    before = set(sys.modules)
    _add_path(Path.cwd(), first=False)
    _add_path(directory)
    try:
        yield
    finally:
        _modules.update(name for name in set(sys.modules) - before if _is_users(sys.modules[name]))


def resolve(target: str, directory: Path, key: str) -> Any:
    """The object a target names. ``key`` is where the config has it: ``model.target``."""
    place, _, name = target.rpartition(":")
    if place.endswith((".py", ".ipynb")) or "/" in place or "\\" in place:
        module = _import_file(directory / Path(place).expanduser(), place, key)
    else:
        module = _import_module(place, directory, key)
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise _no_such_name(module, value, place, part, key) from None
    return value


def call(function: Any, target: str, section: str, kwargs: Mapping[str, Any]) -> Any:
    """What the user's function returns; LoadError where it does not take ``kwargs`` or raises."""
    check_call(function, target, section, (), kwargs)
    with user_code(f"{section}.target: {target}"):
        return function(**kwargs)


def check_call(
    function: Any, target: str, section: str, args: Sequence[object], kwargs: Mapping[str, Any]
) -> None:
    """LoadError where ``function`` cannot be called with these arguments; it is not called."""
    where = f"{section}.target: {target}"
    if not callable(function):
        raise LoadError(f"{where} is {describe(function)}, not a function")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # Some functions written in C tell nothing about themselves.
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        unknown = [name for name in kwargs if name not in signature.parameters and not takes_any]
        if unknown:
            near = _near(unknown[0], list(signature.parameters))
            raise LoadError(
                f"{section}.kwargs.{unknown[0]}: {target} has no parameter '{unknown[0]}'{near}",
                f"It takes {signature}.",
            ) from None
        named = [p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        needed = [p.name for p in named[len(args) :] if p.default is p.empty and p.name not in kwargs]
        if needed and len(named) >= len(args):
            values = ", ".join(f"{name}: ..." for name in needed)
            raise LoadError(
                f"{where} needs {listed(needed)}", f"Give it in the config: {section}.kwargs: {{{values}}}"
            ) from None
        raise LoadError(f"{where} takes {signature}: {error}") from None


@contextlib.contextmanager
def user_code(what: str, hint: str = "") -> Iterator[None]:
    """Whatever the user's code raises inside becomes a LoadError with the user's own traceback.

    ``hint`` is what to say of it where nothing better is known.
    """
    try:
        yield
    except AmpDoctorError:
        raise
    except SystemExit as error:
        raise LoadError(
            f"{what} ends the program: sys.exit({'' if error.code is None else repr(error.code)})",
            'Put what runs the program below `if __name__ == "__main__":`.',
            user_traceback(error),
        ) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"in {what}", error) from error
        first_line = next(iter(message_of(error).splitlines()), "")
        if isinstance(error, ModuleNotFoundError):
            hint = f"ampdoctor runs in {sys.executable}; the program's packages must be installed there."
        raise LoadError(
            f"{what} raised {type(error).__name__}" + (f": {first_line}" if first_line else ""),
            hint,
            user_traceback(error),
        ) from error


def _import_file(file: Path, place: str, key: str) -> ModuleType:
    file = file.resolve()
    if file.suffix == ".ipynb":
        raise LoadError(f"{key}: {place} is a notebook", "Export it: jupyter nbconvert --to script")
    if not file.is_file():
        raise _no_such_file(file, place, key)
    root, name = _importable_as(file)
    if root != file.parent:
        _add_path(file.parent, first=False)
    _add_path(root)
    loaded = sys.modules.get(name)
    if loaded is not None and _file_of(loaded) == file:
        return loaded
    with user_code(f"{key}: importing {place}"):
        if "." in name and loaded is None:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not error.name or not f"{name}.".startswith(f"{error.name}."):
                    raise
            else:  # else another package of the same name is in the way
                if _file_of(module) == file:
                    return module
        if loaded is not None or not name.isidentifier():
            # The name is taken, by another models.py or a library: a name nobody else has.
            name = f"{file.stem}_{crc32(os.fsencode(file)):08x}"
            if name in sys.modules:
                return sys.modules[name]
        return _execute(file, name)


def _execute(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses and pickles look their module up there.
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _importable_as(file: Path) -> tuple[Path, str]:
    """(folder for sys.path, dotted name): packages count from their outermost ``__init__.py``."""
    folder, parts = file.parent, [file.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _import_module(name: str, directory: Path, key: str) -> ModuleType:
    try:
        with user_code(f"{key}: importing {name}"):
            return importlib.import_module(name)
    except LoadError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            found = [p.stem for p in directory.glob("*.py")]
            found += [p.parent.name for p in directory.glob("*/__init__.py")]
            places = " and in ".join(dict.fromkeys([str(directory), str(Path.cwd())]))
            raise LoadError(
                f"{key}: there is no module {cause.name}{_near(name.split('.')[0], found)}",
                f"Looked in {places}, and among the packages of {sys.executable}. "
                "A file is named with its ending: file.py:name.",
            ) from None
        raise


def _no_such_file(file: Path, place: str, key: str) -> LoadError:
    if file.is_dir():
        return LoadError(f"{key}: {place} is a folder, not a Python file")
    if not file.parent.is_dir():
        return LoadError(f"{key}: there is no folder {file.parent}", "Paths start at the config's folder.")
    near = _near(file.name, [p.name for p in file.parent.glob("*.py")])
    return LoadError(f"{key}: there is no file {place} in {file.parent}{near}")


def _no_such_name(module: ModuleType, holder: object, place: str, name: str, key: str) -> LoadError:
    public = [n for n in dir(holder) if not n.startswith("_")]
    own = [n for n in public if getattr(getattr(holder, n, None), "__module__", "") == module.__name__]
    owner = place if holder is module else describe(holder)
    return LoadError(
        f"{key}: {owner} has no '{name}'{_near(name, public)}",
        f"It defines {listed(own)}." if own else "",
    )


def _near(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _add_path(folder: Path, first: bool = True) -> None:
    path = str(folder)
    if first and path in _paths:
        sys.path.remove(path)
        _paths.remove(path)
    if path not in sys.path or first:
        sys.path.insert(0 if first else len(sys.path), path)
        _paths.append(path)


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _is_users(module: ModuleType) -> bool:
    file = _file_of(module)
    # A folder without __init__.py is a module without a file.
    places = [file] if file else [Path(p).resolve() for p in getattr(module, "__path__", ())]
    return any(_is_users_file(place) for place in places)


def _is_users_file(file: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(file.parts):
        return False
    if file.is_relative_to(OWN_FOLDER):
        return False
    return any(file.is_relative_to(Path(path).resolve()) for path in _paths)
