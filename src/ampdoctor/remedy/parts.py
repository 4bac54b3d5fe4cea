"""The fewest parts of a model that need a loss scale of their own."""

from __future__ import annotations

from torch import nn

from ampdoctor.probe.passes.scaled_parts import shares_parameters
from ampdoctor.remedy.ddmin import ddmin
from ampdoctor.remedy.islands import NEVER_CALLED, Holds, in_order, module_tree


def fewest_parts(model: nn.Module, holds: Holds) -> tuple[str, ...] | None:
    """Paths, at the coarsest level of the tree of modules at which scales of their own hold; None if at none.

    Each that is left out makes the set fail. ``holds``: whether they do for the modules of these paths.
    """
    tree = module_tree(model, NEVER_CALLED)
    start = tree[""]
    while start:
        parts = [path for path in start if not shares_parameters(model, model.get_submodule(path))]
        if parts and holds(parts):
            return in_order(tree, ddmin(parts, holds))
        inner = [below for path in start for below in (tree[path] or [path])]
        if inner == start:
            return None
        start = inner
    return None
