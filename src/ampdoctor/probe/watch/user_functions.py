"""What a user's autograd.Function returns: memory that no op filled, where NumPy did the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import Function
from torch.utils._python_dispatch import _disable_current_modes

Returned = Callable[[str, tuple[Any, ...], Any], None]
"""Told of a call of ``Function.apply``: the Function's name, the arguments, what it returned."""


@contextmanager
def watched_functions(returned: Returned | None) -> Iterator[None]:
    """Calls ``returned`` after each ``Function.apply`` while open; no op of its is seen. None: nothing."""
    if returned is None:
        yield
        return
    original = Function.__dict__["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        # A classmethod up to torch 2.13, C's own descriptor since: both bind like this.
        outputs = original.__get__(None, cls)(*args, **kwargs)
        with _disable_current_modes():
            returned(cls.__name__, args, outputs)
        return outputs

    setattr(Function, "apply", classmethod(apply))  # noqa: B010  (mypy: a method cannot be assigned)
    try:
        yield
    finally:
        setattr(Function, "apply", original)  # noqa: B010
