"""Architectures of ``transformers``, scanned end to end: none crashes, none is accused, all are measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import Trace
from case_runner import candidate, scan, warnings_of
from zoo import ZOO


def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    out = model(**batch)
    assert isinstance(out.loss, Tensor)
    return out.loss


def scanned(name: str, **plan: Any) -> tuple[nn.Module, Trace, Report]:
    torch.manual_seed(0)
    model, batch = ZOO[name]()
    model.train()
    trace, report = scan(model, batch, loss, **plan)
    return model, trace, report


@pytest.mark.parametrize("name", ZOO)
def test_an_architecture_is_measured_forward_and_backward(name: str) -> None:
    model, trace, report = scanned(name, loss_scale=1024.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    modules = dict(model.named_modules())
    sites = candidate(trace).sites
    assert {record.site.module for record in sites} <= set(modules)
    ran = {record.path for record in trace.modules if record.calls}
    linears = {path for path, module in modules.items() if isinstance(module, nn.Linear) and path in ran}
    for phase in ("forward", "backward"):
        assert linears <= {record.site.module for record in sites if record.site.phase == phase}
    gradients = {row.name: row for row in candidate(trace).parameters}
    assert set(gradients) <= {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(row.nan == row.inf == 0 for row in gradients.values())
    assert sum(1 for row in gradients.values() if row.absmax) >= len(gradients) / 2
    losses = {record.role: record.loss for record in trace.passes}
    assert losses["candidate"] == pytest.approx(losses["reference"], rel=0.02)


@pytest.mark.parametrize("name", ["gpt2", "resnet", "vit"])
def test_bfloat16(name: str) -> None:
    _, trace, report = scanned(name, dtype="bfloat16", loss_scale=1.0)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert "bfloat16" in {record.stats.dtype for record in candidate(trace).sites}


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_half_weights(name: str) -> None:
    _, trace, report = scanned(name, mode="half", loss_scale=1.0)
    assert report.verdict in ("clean", "gradient-underflow")
    assert {row.dtype for row in candidate(trace).parameters} == {"float16"}
