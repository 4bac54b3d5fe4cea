"""Where an op comes from: the module whose forward is running, and the user's line."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from ampdoctor.facts.site import Source

_TORCH = str(Path(torch.__file__).parent) + "/"
_STDLIB = sysconfig.get_paths()["stdlib"] + "/"
_SITE_PACKAGES = tuple({sysconfig.get_paths()["purelib"] + "/", sysconfig.get_paths()["platlib"] + "/"})
_ENGINE = "torch.autograd.graph"
"""The module whose frame calls the autograd engine: frames outside it belong to the call of backward()."""
_CHECKPOINT = "torch.utils.checkpoint"
_OURS = __name__.partition(".")[0]
CALLS_USER_CODE = "__ampdoctor_calls_user_code__"
"""A module of ours that defines this name calls the user's loss or optimizer: frames outside one of its
frames belong to whoever scans, not to what is scanned."""

_user_files: dict[str, bool] = {}
"""By file name: code objects are equal where only their files differ (a copy of one of torch's files)."""

REPLAYS_USER_CODE = "__ampdoctor_replays_user_code__"
"""A module of ours that defines this name repeats what a script did: its frames with a ``replayed_line``
stand for that line."""


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _calls_user_code(frame: FrameType) -> bool:
    return CALLS_USER_CODE in frame.f_globals


def _is_user_code(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    known = _user_files.get(name)
    if known is None:
        known = not (
            _module_of(frame).partition(".")[0] == _OURS
            or name.startswith((_TORCH, "<"))
            or (name.startswith(_STDLIB) and not name.startswith(_SITE_PACKAGES))
        )
        _user_files[name] = known
    return known


Line = tuple[CodeType, int]
"""A place in the code, cheap to keep for every op; ``source_of`` makes it readable."""


def user_line(in_backward: bool = False) -> Line | None:
    """The innermost line outside torch, ampdoctor and the standard library; None if there is none.

    The ``__torch_function__`` of a mode or a tensor class is passed over for the line that called the op.
    With ``in_backward`` only lines that run inside the autograd engine count (a recomputed forward, or the
    backward of the user's own autograd.Function), not the line that called ``backward()``.
    """
    frame: FrameType | None = sys._getframe(1)
    passed: Line | None = None
    while frame is not None:
        if _is_user_code(frame) and frame.f_code.co_name == "__torch_function__":
            passed = passed or (frame.f_code, frame.f_lineno)  # every op of the model goes through this line
        elif _is_user_code(frame):
            return frame.f_code, frame.f_lineno
        if REPLAYS_USER_CODE in frame.f_globals and "replayed_line" in frame.f_code.co_varnames:
            line: Line | None = frame.f_locals["replayed_line"]
            return line
        if _calls_user_code(frame):
            return None  # an op of ours, as multiplying by the loss scale, that went through a caller's mode
        if in_backward and _module_of(frame) == _ENGINE:
            return passed
        frame = frame.f_back
    return passed


def line_that_makes(made: object) -> Line | None:
    """The innermost user line outside the methods of ``made``; None if there is none.

    Asked by whatever watches the making, so its own frame does not count.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not _calls_user_code(frame):
        if _is_user_code(frame) and frame.f_locals.get("self") is not made:
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def is_recomputing() -> bool:
    """The innermost run of the autograd engine is inside an activation checkpoint's second forward."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module_of(frame) != _ENGINE and not _calls_user_code(frame):
        if _module_of(frame) == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def line_of_exception(error: BaseException) -> Line | None:
    """The innermost user line of the traceback."""
    found = None
    entry = error.__traceback__
    while entry is not None:
        if _is_user_code(entry.tb_frame):
            found = (entry.tb_frame.f_code, entry.tb_lineno)
        entry = entry.tb_next
    return found


def source_of(line: Line | None) -> Source | None:
    """The line with its text, for a report."""
    if line is None:
        return None
    code, number = line
    return Source(code.co_filename, number, linecache.getline(code.co_filename, number).strip(), code.co_name)


class RunningModule(NamedTuple):
    """A module whose forward runs."""

    path: str
    node: torch.autograd.graph.Node | None
    """The autograd node that was running when it was called: one that recomputes it; None in forward."""


class ModuleStack:
    """Which modules' forwards are running, innermost last; and how often each was called."""

    def __init__(self, model: nn.Module) -> None:
        self.paths = {id(module): path for path, module in model.named_modules()}
        self._running: list[RunningModule] = []
        self.calls: dict[str, int] = {}
        self._raised: tuple[BaseException, str] | None = None

    @property
    def innermost(self) -> RunningModule | None:
        """The innermost running module; None outside any."""
        return self._running[-1] if self._running else None

    @property
    def current(self) -> str:
        """Path of the innermost running module; '' for the root or outside any."""
        return self._running[-1].path if self._running else ""

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
            self.calls[path] = self.calls.get(path, 0) + 1
            if torch._C._len_torch_dispatch_stack() == 0:
                return original(module, *args, **kwargs)  # a thread of the model's own: its ops are not seen
            self._running.append(RunningModule(path, torch._C._current_autograd_node()))
            try:
                return original(module, *args, **kwargs)
            except BaseException as error:
                if self._raised is None or self._raised[0] is not error:
                    self._raised = (error, path)
                raise
            finally:
                self._running.pop()

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]
            self._running.clear()
