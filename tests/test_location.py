"""Which frames are the user's: told by module, so that no file's name or place matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ampdoctor.probe.watch.location import CALLS_USER_CODE, Line, user_line
from case_runner import lines_of, scan


def function(source: str, module: str, file: str, **names: Any) -> Callable[..., Any]:
    """The function ``f`` of this source, as if it stood in that file of that module."""
    namespace: dict[str, Any] = {"__name__": module, "user_line": user_line, **names}
    exec(compile(source, file, "exec"), namespace)
    found: Callable[..., Any] = namespace["f"]
    return found


def place(line: Line | None) -> tuple[str, int] | None:
    return None if line is None else (line[0].co_filename, line[1])


@pytest.mark.parametrize("file", ["/repo/src/ampdoctor/probe/watch/observer.py", "/elsewhere/renamed.py"])
def test_a_file_of_ours_may_be_renamed(file: str) -> None:
    """Its lines are skipped, and what calls it is the user's line."""
    ours = function("def f():\n    return user_line()", "ampdoctor.probe.watch.renamed", file)
    theirs = function("\n\ndef f(ours):\n    return ours()", "train", "/home/me/train.py")
    assert place(theirs(ours)) == ("/home/me/train.py", 4)


@pytest.mark.parametrize("file", ["/repo/src/ampdoctor/probe/passes/one_pass.py", "/elsewhere/renamed.py"])
def test_what_lies_outside_a_module_that_calls_user_code_is_nobodys_line(file: str) -> None:
    ours = function(
        "def f():\n    return user_line()", "ampdoctor.probe.passes.renamed", file, **{CALLS_USER_CODE: True}
    )
    scans = function("def f(ours):\n    return ours()", "my_test", "/home/me/test_it.py")
    assert scans(ours) is None


@pytest.mark.parametrize(
    "file", ["/home/me/ampdoctor/probe/watch/observer.py", "/home/me/one_pass.py", "/home/me/location.py"]
)
def test_a_file_of_the_users_may_be_called_like_one_of_ours(file: str) -> None:
    theirs = function("def f():\n    return user_line()", "observer", file)
    assert place(theirs()) == (file, 2)


def test_a_module_whose_name_only_begins_like_ours_is_the_users() -> None:
    theirs = function("def f():\n    return user_line()", "ampdoctor_models.t5", "/home/me/t5.py")
    assert place(theirs()) == ("/home/me/t5.py", 2)


class Passed(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum()


def test_a_mode_of_the_users_that_every_op_goes_through_is_not_the_line_of_any() -> None:
    with Passed():
        trace, _ = scan(Summed(), torch.ones(2, requires_grad=True), lambda m, x: m(x), forward_only=True)
    assert lines_of(trace, "forward") == {"return (x * x).sum()"}
