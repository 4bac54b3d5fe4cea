"""Where an op comes from: the module whose forward is running, and the user's line."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from ampdoctor.facts.site import Source

_TORCH = str(Path(torch.__file__).parent) + "/"
_OURS = str(Path(__file__).parent.parent) + "/"
_STDLIB = sysconfig.get_paths()["stdlib"] + "/"
_SITE_PACKAGES = tuple({sysconfig.get_paths()["purelib"] + "/", sysconfig.get_paths()["platlib"] + "/"})
_ENGINE = str(Path(_TORCH, "autograd", "graph.py"))
"""The file whose frame calls the autograd engine: frames outside it belong to the call of backward()."""

_user_code: dict[CodeType, bool] = {}


def _is_user_code(code: CodeType) -> bool:
    known = _user_code.get(code)
    if known is None:
        name = code.co_filename
        known = not (
            name.startswith((_TORCH, _OURS, "<"))
            or (name.startswith(_STDLIB) and not name.startswith(_SITE_PACKAGES))
        )
        _user_code[code] = known
    return known


Line = tuple[CodeType, int]
"""A place in the code, cheap to keep for every op; ``source_of`` makes it readable."""


def user_line(in_backward: bool = False) -> Line | None:
    """The innermost line outside torch, ampdoctor and the standard library; None if there is none.

    With ``in_backward`` only lines that run inside the autograd engine count (a recomputed forward, or the
    backward of the user's own autograd.Function), not the line that called ``backward()``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _is_user_code(code):
            return code, frame.f_lineno
        if in_backward and code.co_filename == _ENGINE:
            return None
        frame = frame.f_back
    return None


def line_of_exception(error: BaseException) -> Line | None:
    """The innermost user line of the traceback."""
    found = None
    entry = error.__traceback__
    while entry is not None:
        if _is_user_code(entry.tb_frame.f_code):
            found = (entry.tb_frame.f_code, entry.tb_lineno)
        entry = entry.tb_next
    return found


def source_of(line: Line | None) -> Source | None:
    """The line with its text, for a report."""
    if line is None:
        return None
    code, number = line
    return Source(code.co_filename, number, linecache.getline(code.co_filename, number).strip(), code.co_name)


class ModuleStack:
    """Which modules' forwards are running, innermost last; and how often each was called."""

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.running: list[str] = []
        self.calls: dict[str, int] = {}
        self._raised: tuple[BaseException, str] | None = None

    @property
    def current(self) -> str:
        """Path of the innermost running module; '' for the root or outside any."""
        return self.running[-1] if self.running else ""

    def module_of_exception(self, error: BaseException) -> str:
        """The innermost module that the exception came out of."""
        return self._raised[1] if self._raised is not None and self._raised[0] is error else ""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Follows module calls while open.

        It wraps ``nn.Module.__call__`` instead of registering hooks: a model that looks at its hooks (fused
        attention paths do) runs as it would without us, and a call that raises is followed as well.
        """
        original: Callable[..., Any] = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = self.paths.get(id(module))
            if path is None:
                return original(module, *args, **kwargs)
            self.running.append(path)
            self.calls[path] = self.calls.get(path, 0) + 1
            try:
                return original(module, *args, **kwargs)
            except BaseException as error:
                if self._raised is None or self._raised[0] is not error:
                    self._raised = (error, path)
                raise
            finally:
                self.running.pop()

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]
            self.running.clear()
