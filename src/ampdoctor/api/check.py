"""A scan with a gate's word on it: what the pytest fixture asserts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ampdoctor.api.report import Report
from ampdoctor.api.request import gate_rules_of
from ampdoctor.api.scan import examine
from ampdoctor.api.settings import config_of, precision_section
from ampdoctor.diagnose.gate_result import PASSED
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.render import Options
from ampdoctor.render.failure_text import render_failure

if TYPE_CHECKING:
    from ampdoctor.load.live import LossFn

_PRECISION = ("mode", "dtype", "device", "emulate", "loss_scale")
_GATE = ("fail_on", "scale_in_window")


def check(model: torch.nn.Module, batch: Any, loss_fn: LossFn | str | None = None, **limits: Any) -> Report:
    """The report on ``model``; its ``gate`` says whether it passes.

    ``limits`` are the keys of the config's section and fail where they are not kept; besides, the keywords of
    ``ampdoctor.scan`` and the gate's ``fail_on`` and ``scale_in_window``.
    """
    single = {key: limits.pop(key) for key in _PRECISION if key in limits}
    gate = {key: limits.pop(key) for key in _GATE if key in limits}
    by_module = dict(limits.pop("limits", None) or {})
    batches, optimizer = limits.pop("batches", None), limits.pop("optimizer", None)
    config = config_of(
        type(model).__name__,
        precision=precision_section(limits.pop("precision", None), **single),
        seed=limits.pop("seed", None),
        rules=limits.pop("rules", None),
        gate=gate,
        limits={**by_module, **limits},
    )
    report = examine(config, model, batch, loss_fn, batches=batches, optimizer=optimizer)
    return Report.of(evaluate(report, gate_rules_of(config)))


def failure(report: Report) -> str:
    """Why the report does not pass, as a test's message; '' where it passes."""
    if report.gate is not None and report.gate.status == PASSED:
        return ""
    return render_failure(report, Options(base=str(Path.cwd()))).rstrip("\n")
