"""The script for whoever has a GPU, as far as it can be run without one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.site import Site
from ampdoctor.facts.stats import TensorStats
from ampdoctor.facts.trace import SiteRecord

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "on_cuda.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("benchmark_cuda", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    path = list(sys.path)
    found.loader.exec_module(module)
    sys.path[:] = path
    return module


def made(op: str, dtype: str, absmax: float | None) -> SiteRecord:
    stats = TensorStats(dtype, (4,), None, None, absmax, 0, 0, 0, None, None, ExponentHistogram())
    return SiteRecord(Site("forward", "m", op, 0), 0, stats, None, "", "", False, False)


def test_emulation_and_device_are_compared_site_by_site(script: ModuleType) -> None:
    emulated = [
        made("mm", "float16", 1.0),
        made("add", "float16", 1.0),
        made("exp", "float32", 2.0),
        made("sub", "float16", None),
        made("here", "float16", 1.0),
    ]
    real = [
        made("mm", "float16", 1.0 + 2.0**-10),  # the next number
        made("add", "float16", 1.0 + 2.0**-9),
        made("exp", "float16", 2.0),
        made("sub", "float16", 3.0),
        made("there", "float16", 1.0),
    ]
    answer = script.compared(emulated, real)
    assert answer["paired"] == 4
    assert answer["emulated_only"]["first"] == ["forward|m|here|0|0"]
    assert answer["real_only"]["first"] == ["forward|m|there|0|0"]
    assert answer["other_dtype"]["first"] == [["forward|m|exp|0|0", "float32", "float16"]]
    off = {row[0].split("|")[2]: row[-1] for row in answer["absmax_off_by_more_than_one_ulp"]["first"]}
    assert off == {"add": 2.0, "sub": None}


@pytest.mark.parametrize(
    ("a", "b", "dtype", "expected"),
    [
        (1.0, 1.0, "float16", 0.0),
        (1.0, 1.0 + 2.0**-10, "float16", 1.0),
        (2.0**-24, 2.0**-23, "float16", 1.0),  # subnormals lie as far apart as the smallest normal numbers
        (65504.0, 65472.0, "float16", 1.0),
        (1.0, 1.0 + 2.0**-10, "float32", 2.0**13),
        (256.0, 258.0, "bfloat16", 1.0),
    ],
)
def test_ulps(script: ModuleType, a: float, b: float, dtype: str, expected: float) -> None:
    assert script.ulps(a, b, getattr(torch, dtype)) == script.ulps(b, a, getattr(torch, dtype)) == expected


def test_a_dry_run_writes_the_document_and_finds_the_emulation_equal_to_itself(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def few(small: bool) -> dict[str, Any]:
        return {"line": (nn.Sequential(nn.Linear(4, 4), nn.Flatten(0), Mean()), torch.ones(2, 4))}

    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float().mean()

    ops = {name: op for name, op in script.single_ops().items() if name in ("linear", "exp")}
    monkeypatch.setattr(script, "models", few)
    monkeypatch.setattr(script, "single_ops", lambda: ops)
    out = tmp_path / "cuda.json"
    arguments = ["on_cuda.py", "--device", "cpu", "--small", "--rounds", "1", "-o", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    script.main()
    assert capsys.readouterr().out.startswith("A dry run, on a CPU")
    answer = json.loads(out.read_text())
    assert (answer["schema"], answer["on_a_gpu"]) == ("ampdoctor.benchmark.cuda/1", False)
    assert set(answer["single_ops"]) == {"linear", "exp"}
    for compared in (*answer["single_ops"].values(), *answer["models"].values()):
        assert compared["paired"] > 5
        kinds = ("emulated_only", "real_only", "other_dtype", "absmax_off_by_more_than_one_ulp")
        assert [compared[kind]["count"] for kind in kinds] == [0, 0, 0, 0]
    assert answer["steps"]["line"]["tensors"] > 5
    assert [row["bytes"] for row in answer["bandwidth"]] == [2**15, 2**15, 2**16]
    assert all(
        row["gb_per_s"]["copy"] > 0 and row["gb_per_s"]["fused"] is None for row in answer["bandwidth"]
    )


def test_every_single_op_can_be_asked(script: ModuleType) -> None:
    for op, inputs in script.single_ops().values():
        assert torch.isfinite(op(*(t.float() for t in inputs))).all()


def test_no_script_of_the_folder_stands_in_the_way_of_a_package() -> None:
    """A script's folder comes first on its path, and torch imports NVIDIA's package ``cuda``."""
    names = {script.stem for script in SCRIPT.parent.glob("*.py")}
    assert "on_cuda" in names
    assert not {"cuda", "torch", "triton", "numpy", *sys.stdlib_module_names} & names


def test_the_script_starts() -> None:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "please send it to us" in done.stdout


def test_without_a_gpu_it_says_how_to_go_on(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["on_cuda.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        script.main()
    assert "--device cpu --small" in capsys.readouterr().err
