"""The model's modules as facts: what they are, how often they ran, and whether their inside was seen."""

from __future__ import annotations

import torch
from torch import nn

from ampdoctor.facts.trace import ModuleRecord
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.one_pass import Run


def module_records(workload: Workload, candidate: Run | None) -> tuple[ModuleRecord, ...]:
    """One record per module, in the model's own order; ``candidate``: the first such pass, if any ran."""
    calls = candidate.modules.calls if candidate is not None else {}
    seen = candidate.observer.modules_seen if candidate is not None else set()
    return tuple(
        ModuleRecord(
            path=path,
            type=_type_name(module),
            calls=calls.get(path, 0),
            parameters=sum(p.numel() for p in module.parameters(recurse=False)),
            opaque=_is_opaque(path, module, calls, seen),
            compiled=path in workload.compiled,
            only_trained=calls.get(path, 0) > 0 and module.training and _knows_evaluation(module),
        )
        for path, module in workload.model.named_modules()
    )


def _is_opaque(path: str, module: nn.Module, calls: dict[str, int], seen: set[str]) -> bool:
    """It ran, it has no children to do its work, and yet no op was seen in it."""
    return (
        calls.get(path, 0) > 0
        and path not in seen
        and not any(True for _ in module.children())
        and (
            any(True for _ in module.parameters(recurse=False)) or isinstance(module, torch.jit.ScriptModule)
        )
    )


def _knows_evaluation(module: nn.Module) -> bool:
    """One of torch's modules that compute something else once it is not in training."""
    if isinstance(module, (nn.modules.batchnorm._NormBase)):
        return module.track_running_stats
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    dropout = getattr(module, "dropout", 0.0)
    recurrent = isinstance(module, nn.RNNBase) and module.num_layers > 1
    return (recurrent or isinstance(module, nn.MultiheadAttention)) and float(dropout) > 0


def _type_name(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    # fully_shard puts a class of its own in the place of a module's: FSDPLinear.
    own = (c for c in type(module).__mro__ if not c.__module__.startswith("torch.distributed"))
    cls = next(own, type(module))
    return (type(module) if cls is nn.Module else cls).__name__
