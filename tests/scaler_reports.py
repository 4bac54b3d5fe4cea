"""Runs of a loss scaler built by hand, the reports on them, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampdoctor.diagnose.scaler import judge_scaler
from ampdoctor.diagnose.scaler_report import ScalerReport
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.training import ScalerRun, ScalerSettings, StepRecord
from ampdoctor.render import SCALER as FORMATS
from ampdoctor.render.options import Options
from trace_builder import birth, environment, source

CAUSE = birth(
    "head", "aten::mm", phase="backward", forward_op="aten::addmm", source=source(40, "return self.head(x)")
)


def steps_of(
    ceilings: Sequence[int | None],
    init_scale: float = 65536.0,
    interval: int = 2000,
    batches: int = 1,
    cause: Birth | None = CAUSE,
) -> tuple[tuple[StepRecord, ...], float]:
    """What GradScaler does when step i overflows past 2^ceilings[i], and the scale after it."""
    scale, good, steps = init_scale, 0, []
    for step, ceiling in enumerate(ceilings):
        bad = ceiling is None or scale > 2.0**ceiling
        bad_parameters = ("head.weight",) if bad else ()
        steps.append(
            StepRecord(step, step % batches, 1.5, scale, bad, ceiling, bad_parameters, cause if bad else None)
        )
        good = 0 if bad else good + 1
        if bad:
            scale /= 2
        elif good == interval:
            scale, good = scale * 2, 0
    return tuple(steps), scale


def report_on(
    ceilings: Sequence[int | None],
    init_scale: float = 65536.0,
    interval: int = 2000,
    batches: int = 1,
    **changes: Any,
) -> ScalerReport:
    steps, final = steps_of(ceilings, init_scale, interval, batches)
    values: dict[str, Any] = {
        "environment": environment(batches=batches),
        "optimizer": "AdamW",
        "parameter_dtypes": ("float32",),
        "settings": ScalerSettings(init_scale, 2.0, 0.5, interval),
        "requested": len(ceilings),
        "steps": steps,
        "final_scale": final,
        "refusal": "",
        "broken_weights": (),
        "seed": 0,
        "seconds": 1.25,
        "interrupted": False,
    }
    return judge_scaler(ScalerRun(**(values | changes)))


def render(report: ScalerReport, **options: Any) -> str:
    return FORMATS["text"](report, Options(**options))
