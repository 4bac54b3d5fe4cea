"""The smallest set of modules to run in FP32: from the whole model down to the finest that holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from ampdoctor.remedy.ddmin import ddmin

Holds = Callable[[Sequence[str]], bool]
"""Whether the model is cured with the modules of these paths, and all inside them, in FP32."""
NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)
_NO_OPS_OF_THEIR_OWN = (nn.Sequential, *NEVER_CALLED)


def smallest_islands(
    model: nn.Module, holds: Holds, flops: Mapping[str, int], guesses: Sequence[str]
) -> tuple[str, ...] | None:
    """Paths in the order of the model; None where not even the whole model in FP32 holds.

    Each that is left out makes the set fail. ``guesses`` are modules to try first: where the births are.
    Among equals what costs few ``flops`` is kept.
    """
    tree = module_tree(model)
    for guess in guesses:
        if guess and guess in tree and holds([guess]):
            return in_order(tree, _refined([guess], tree, holds, flops))
    start = [""]
    while not holds(start):  # a module that opens autocast by itself lets only those inside it be widened
        inner = [below for path in start for below in (tree[path] or [path])]
        if inner == start:
            return None
        start = inner
    return in_order(tree, _refined(start, tree, holds, flops))


def is_minimal(paths: Sequence[str], holds: Holds) -> bool:
    """Whether the set fails without any one of its modules."""
    return not any(holds([p for p in paths if p != left_out]) for left_out in paths)


def _refined(
    start: list[str], tree: Mapping[str, list[str]], holds: Holds, flops: Mapping[str, int]
) -> list[str]:
    """The set with every module replaced by those inside it that are needed, as long as that holds."""
    kept, whole = list(start) if len(start) == 1 else ddmin(start, holds), set[str]()
    while True:
        outer = next((path for path in kept if tree[path] and path not in whole), None)
        if outer is None:
            return kept
        rest = [path for path in kept if path != outer]
        inner = sorted(tree[outer], key=lambda path: flops.get(path, 0))
        if not holds([*rest, *inner]):
            whole.add(outer)  # ops of its own are among what needs FP32
            continue
        kept = ddmin([*rest, *inner], holds)


def module_tree(
    model: nn.Module, passed_over: tuple[type[nn.Module], ...] = _NO_OPS_OF_THEIR_OWN
) -> dict[str, list[str]]:
    """{path: the paths of the modules right inside it}, some containers passed over for what is in them."""
    named = dict(model.named_modules())

    def inside(path: str) -> list[str]:
        found: list[str] = []
        for name, child in named[path].named_children():
            below = f"{path}.{name}" if path else name
            if below not in named:
                continue  # shared: it goes by its first name
            found += inside(below) if type(child) in passed_over else [below]
        return found

    return {path: inside(path) for path in named}


def in_order(tree: Mapping[str, list[str]], paths: Sequence[str]) -> tuple[str, ...]:
    """The paths, in the order of the tree."""
    return tuple(path for path in tree if path in paths)
