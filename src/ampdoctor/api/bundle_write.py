"""The step of a running script as a bundle in a folder."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampdoctor.api.bundle_load import PACKAGES, version_of
from ampdoctor.api.script_capture import Captured
from ampdoctor.facts.bundle import WEIGHTS, Bundle
from ampdoctor.facts.loop import Moment
from ampdoctor.facts.words import RecordedFor
from ampdoctor.load.script.buffers import put_back
from ampdoctor.load.to_bundle import check_whole, kept_of
from ampdoctor.load.wrappers import without_wrappers
from ampdoctor.probe.passes.device import device_name
from ampdoctor.store.bundles import write_bundle
from ampdoctor.version import VERSION


@dataclass(frozen=True)
class Incident:
    """What a step is recorded for, in figures."""

    step: int
    why: RecordedFor
    loss: float | None = None
    gradient_norm: float | None = None
    median_loss: float | None = None
    skips: int = 0


@dataclass(frozen=True)
class Shelf:
    """Where bundles go."""

    directory: Path
    keep: int = 20
    """The newest so many stay."""
    most_bytes: int | None = None
    """One bundle may take so many; None: any."""


def write_step(
    loss: Captured, incident: Incident, timeline: Sequence[Moment], shelf: Shelf, name_line: bool = False
) -> Path:
    """The folder of the new bundle; weights, buffers and generators in it are as before the step's forward.

    ``name_line``: its name has the line of the backward. Raises LoadError for a step that cannot be kept,
    OSError where it could not be written.
    """
    check_whole(loss.workload.model)
    with torch.no_grad(), put_back(loss.buffers), without_wrappers(loss.workload) as workload:
        kept = kept_of(workload, loss.optimizer)
        first = next(workload.model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
    weights = [t for name, t in kept.tensors[WEIGHTS].items() if t.is_floating_point()]
    bundle = Bundle(
        script=workload.title,
        step=incident.step,
        why=incident.why,
        line=loss.line,
        loss=incident.loss,
        gradient_norm=incident.gradient_norm,
        median_loss=incident.median_loss,
        skips=incident.skips,
        tool_version=VERSION,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        device=str(device),
        device_name=device_name(device),
        packages={name: found for name in PACKAGES if name in sys.modules and (found := version_of(name))},
        dtypes=tuple(_name(dtype) for dtype in loss.dtypes),
        weight_dtypes=tuple(dict.fromkeys(_name(t.dtype) for t in weights)),
        loss_scale=None if loss.scaler is None or loss.scale is None else float(loss.scale),
        scaler=_scaler_state(loss.scaler),
        optimizer=kept.optimizer,
        roots=kept.roots,
        ties=kept.ties,
        frozen=kept.frozen,
        evaluating=kept.evaluating,
        calls=kept.calls,
        end=kept.end,
        differentiated=kept.differentiated,
        timeline=tuple(timeline),
    )
    name = f"step-{bundle.step:08d}" + (f"-line-{bundle.line}" if name_line else "")
    return write_bundle(shelf.directory, name, bundle, kept.tensors, shelf.keep, shelf.most_bytes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _scaler_state(scaler: Any) -> dict[str, float | int | None]:
    state = scaler.state_dict() if scaler is not None else {}
    plain = {key: value.item() if isinstance(value, Tensor) else value for key, value in state.items()}
    return {key: value for key, value in plain.items() if value is None or isinstance(value, (int, float))}
