"""Runs a whole scan through the Python functions: of a case in tests/cases, or of a model made in a test."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch.torch_version import TorchVersion

from ampdoctor.api.request import plan_of
from ampdoctor.config import Config, load_config
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.trace import Pass, Trace
from ampdoctor.load import load
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe

CASES = Path(__file__).parent / "cases"

PRECISION: dict[str, dict[str, str]] = {
    "autocast-fp16": {"mode": "autocast", "dtype": "float16"},
    "autocast-bf16": {"mode": "autocast", "dtype": "bfloat16"},
    "half": {"mode": "half", "dtype": "float16"},
    "bf16-pure": {"mode": "half", "dtype": "bfloat16"},
    "fp32": {"mode": "none"},
}
"""A case's MODE in the config's words."""


@dataclass(frozen=True)
class Case:
    """One case: its name and its answer key."""

    slug: str
    key: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.key["class"])

    @property
    def fails(self) -> bool:
        """False where the installed torch is one in which plain torch does not fail either."""
        installed = TorchVersion(torch.__version__)
        below, since = self.key.get("fails_below_torch", "999"), self.key.get("fails_from_torch", "0")
        return bool(since <= installed < below)

    @property
    def clean(self) -> bool:
        """A healthy case, in a version of torch in which it is healthy."""
        since = self.key.get("clean_from_torch", "0")
        return self.kind == "clean" and bool(TorchVersion(torch.__version__) >= since)

    @property
    def origin_phase(self) -> str:
        return str(self.key.get("origin_phase", self.key["phase"]))

    def expected(self, name: str, emulate: str) -> str:
        """``first_bad_op`` or ``first_bad_module``; CUDA's where the key has it and CUDA is emulated."""
        if emulate == "cuda" and f"cuda_{name}" in self.key:
            return str(self.key[f"cuda_{name}"])
        return str(self.key[name])


def model_cases() -> list[Case]:
    """Every case that is a model, with its key."""
    folders = sorted(path.parent for path in CASES.glob("*/case.py"))
    return [Case(folder.name, yaml.safe_load((folder / "expected.yaml").read_text())) for folder in folders]


def case_config(slug: str, emulate: str) -> Config:
    """The config with which ``ampdoctor scan`` would be called on a case."""
    spec = importlib.util.spec_from_file_location(f"case_{slug}", CASES / slug / "case.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    document: dict[str, Any] = {
        "model": {"target": "case.py:build_model"},
        "data": {"target": "case.py:build_batch"},
        "loss": {"target": "case.py:compute_loss"},
        "precision": {
            **PRECISION[getattr(module, "MODE", "autocast-fp16")],
            "loss_scale": float(getattr(module, "LOSS_SCALE", 65536.0)),
            "emulate": emulate,
            "device": "cpu",
        },
        "seed": 1234,
    }
    if hasattr(module, "build_optimizer"):
        document["optimizer"] = {"target": "case.py:build_optimizer"}
    return Config.model_validate(document).located(CASES / slug, slug)


def run_config(config: Config) -> tuple[Trace, Report]:
    """Trace and report of a config: load, probe, diagnose."""
    trace = probe(load(config), plan_of(config))
    return trace, diagnose(trace)


@cache
def scanned_sample(config: Path) -> tuple[Trace, Report]:
    """Trace and report of a sample config on a CPU, the same for every test that looks at them."""
    return run_config(load_config(config, ["precision.device=cpu"]))


def run_case(slug: str, emulate: str = "cuda") -> Report:
    """The report on a case."""
    return run_config(case_config(slug, emulate))[1]


def scan(
    model: nn.Module,
    batch: Any,
    step: Callable[[nn.Module, Any], Any],
    *,
    forward_only: bool = False,
    **plan: Any,
) -> tuple[Trace, Report]:
    """Trace and report of a model made in the test; asserts that the scan left the model as it was."""
    before = snapshot(model)
    workload = Workload("test", model, (batch,), step, forward_only=forward_only)
    trace = probe(workload, Plan(device="cpu", **plan))
    assert_same(snapshot(model), before)
    return trace, diagnose(trace)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model and the random generators that a scan must leave alone."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors},
        "dtypes": {name: tensor.dtype for name, tensor in tensors},
        "identity": {name: id(tensor) for name, tensor in tensors},
        "gradients": {name: tensor.grad for name, tensor in tensors},
        "requires_grad": {name: tensor.requires_grad for name, tensor in tensors},
        "training": {name: module.training for name, module in model.named_modules()},
        "hooks": {
            name: [len(getattr(module, kind, ())) for kind in HOOKS] for name, module in model.named_modules()
        },
        "torch's generator": torch.get_rng_state(),
        "python's generator": random.getstate(),
    }


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def assert_same(after: dict[str, Any], before: dict[str, Any]) -> None:
    """Fails on the first part of two snapshots that differs, naming it."""
    for part, value in before.items():
        if part == "values":
            changed = [
                n for n, t in value.items() if not torch.equal(t.nan_to_num(), after[part][n].nan_to_num())
            ]
            assert not changed, f"the scan changed {changed}"
        elif isinstance(value, torch.Tensor):
            assert torch.equal(after[part], value), f"the scan changed {part}"
        else:
            assert after[part] == value, f"the scan changed {part}"


# ---------------------------------------------------------------- reading traces and reports


def candidate(trace: Trace) -> Pass:
    """The pass in the precision that was asked for, at the configured scale, of the first batch."""
    passes = [p for p in trace.passes if p.role == "candidate" and p.batch == 0]
    wanted = [p for p in passes if p.loss_scale == trace.loss_scale]
    return (wanted or passes)[0]


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


def warnings_of(report: Report) -> list[str]:
    """Errors and warnings, each as ``CODE module``, without the doubts about the measurement (9xx)."""
    return [
        f"{finding.code} {finding.module}"
        for finding in report.findings
        if finding.severity in ("error", "warning") and not finding.code.startswith("AMP9")
    ]


def ops_of(trace: Trace, phase: str, module: str) -> list[str]:
    """The ops that made a tensor in this module and phase, in order."""
    return [
        record.site.op
        for record in candidate(trace).sites
        if (record.site.phase, record.site.module) == (phase, module) and record.site.output == 0
    ]


def lines_of(trace: Trace, phase: str) -> set[str]:
    """The source lines that made tensors in this phase."""
    return {r.source.text for r in candidate(trace).sites if r.source is not None and r.site.phase == phase}
