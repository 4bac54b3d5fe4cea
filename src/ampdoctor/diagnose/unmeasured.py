"""A report of nothing: it stands for a config that could not be scanned, so that every format tells of it."""

from __future__ import annotations

from ampdoctor.diagnose.gate_result import GateResult
from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.report import LossScale, Report
from ampdoctor.facts.environment import Environment
from ampdoctor.facts.words import GateStatus


def unmeasured(title: str, reason: str, status: GateStatus, tool_version: str, config: str = "") -> Report:
    """The report that says why there is none; no figure in it was measured."""
    environment = Environment(
        tool_version=tool_version,
        torch_version="",
        python_version="",
        device="",
        device_name="",
        emulates=None,
        mode="none",
        dtype="",
        loss_scale=1.0,
        title=title,
        forward_only=False,
        batches=0,
        trainable_parameters=0,
    )
    return Report(
        environment=environment,
        verdict="not-measured",
        headline=Headline("NOT MEASURED.", reason),
        first_fault=None,
        run_up=(),
        losses=(),
        layers=(),
        parameters=(),
        loss_scale=LossScale(configured=1.0),
        findings=(),
        not_seen=("anything",),
        passes=0,
        seconds=0.0,
        interrupted=False,
        seed=0,
        config=config,
        gate=GateResult(status, (), 0, (), (), "", reason),
    )
