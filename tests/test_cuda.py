"""On a real GPU: nothing is imitated, and the diagnoses are those of the CPU. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ampdoctor.config import load_config
from case_runner import codes, run_config, warnings_of

SAMPLES = Path(__file__).parent.parent / "sample_configs"


@pytest.mark.cuda
def test_a_gpu_is_used_and_nothing_is_imitated() -> None:
    trace, report = run_config(load_config(SAMPLES / "healthy.yaml"))
    assert trace.environment.device.startswith("cuda")
    assert trace.environment.device_name == torch.cuda.get_device_name(0)
    assert trace.environment.emulates is None
    assert "AMP901" not in codes(report)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


@pytest.mark.parametrize(
    ("sample", "verdict", "module", "op"),
    [
        ("t5_ffn_overflow", "forward-overflow", "blocks.1.ff.wo", "aten::mm"),
        ("fully_masked_row", "forward-undefined", "attention", "aten::_softmax"),
        ("vanishing_eps", "forward-underflow", "norm", "aten::div"),
        ("mask_minus_1e9", "forward-overflow", "attention", "aten::masked_fill"),
        ("where_both_branches", "backward-undefined", "activation", "aten::exp"),
    ],
)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.cuda), "cpu"])
def test_a_gpu_and_its_imitation_agree(sample: str, verdict: str, module: str, op: str, device: str) -> None:
    config = load_config(SAMPLES / f"{sample}.yaml", [f"precision.device={device}"])
    _, report = run_config(config)
    assert report.verdict == verdict
    assert report.first_fault is not None
    assert (report.first_fault.module, report.first_fault.op) == (module, op)


@pytest.mark.cuda
def test_the_real_bce_is_refused_by_cuda_itself() -> None:
    _, report = run_config(load_config(SAMPLES / "bce_under_autocast.yaml", ["precision.device=cuda"]))
    assert report.verdict == "raises"
    assert "AMP107" in codes(report)
