"""torch's control flow (``torch.cond``, ``while_loop``, ``map``, ``scan``) as the Python that it stands for.

Run eagerly, its operators give no gradient to what their functions close over, since it is the compiler that
finds that; and of a backward of their own no op has a line. As plain Python every op is seen where it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ampdoctor.probe.watch.tracing import is_tracing


@contextmanager
def control_flow_as_python() -> Iterator[None]:
    """Calls of those operators run the functions they are given, one after the other, while open."""
    with ExitStack() as stack:
        for name, run in _RUNS.items():
            op = getattr(torch.ops.higher_order, name, None)
            if op is not None:
                stack.enter_context(_replaced(type(op), run))
        yield


@contextmanager
def _replaced(cls: Any, run: Callable[..., Any]) -> Iterator[None]:
    original = cls.__call__
    signature = inspect.signature(run)

    def call(op: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:  # another torch's arguments
            return original(op, *args, **kwargs)
        if is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None:
            return original(op, *args, **kwargs)  # a graph is made of it, or a batch
        return run(*args, **kwargs)

    cls.__call__ = call
    try:
        yield
    finally:
        cls.__call__ = original


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return (true_fn if bool(pred) else false_fn)(*operands)


def _while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any) -> Any:
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried, *additional_inputs)):
        carried = tuple(body_fn(*carried, *additional_inputs))
    return carried


def _map(f: Any, xs: Any, pos_args: Any) -> Any:
    return _stacked([f(*(x[i] for x in xs), *pos_args) for i in range(len(xs[0]))])


def _scan(combine_fn: Any, init: Any, xs: Any, additional_inputs: Any) -> Any:
    carry, rows = list(init), []
    for i in range(len(xs[0])):
        made = list(combine_fn(*carry, *(x[i] for x in xs), *additional_inputs))
        carry, row = made[: len(carry)], made[len(carry) :]
        rows.append(row)
    return (*carry, *_stacked(rows))


def _stacked(rows: list[Any]) -> Any:
    """What each row holds, one under the other."""
    return tree_map(
        lambda *same: torch.stack(same) if isinstance(same[0], Tensor) else same[0], rows[0], *rows[1:]
    )


_RUNS: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "map_impl": _map,
    "scan": _scan,
}
