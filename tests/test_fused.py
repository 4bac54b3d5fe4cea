"""The kernel that counts a tensor on a GPU: its figures, its compilation, and what happens without it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from ampdoctor.errors import is_out_of_memory
from ampdoctor.probe.watch import fused, tally
from ampdoctor.probe.watch.tally import Tally

HERE = Path(__file__).parent
WITHOUT = "needs Triton, which CUDA builds of torch bring along"


# ---------------------------------------------------------------- with Triton, without a GPU


def test_the_kernel_counts_as_torchs_own_ops_do() -> None:
    triton = pytest.importorskip("triton", reason=WITHOUT)
    if triton.__version__ < "3.3" and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0":
        pytest.skip("this Triton's interpreter does not run under this numpy")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(HERE / "fused_kernel.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "ANSWER" in done.stdout, done.stderr[-2000:]
    answer = json.loads(done.stdout.rpartition("ANSWER")[2])
    assert answer["differences"] == []
    assert {"torch.float16", "torch.bfloat16", "torch.float32", "torch.float64"} <= set(answer["dtypes"])
    assert answer["cases"] == 2 * 20 * len(answer["dtypes"])


@pytest.mark.parametrize("dtype", fused._KINDS, ids=str)
def test_the_kernel_compiles_for_a_gpu(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton", reason=WITHOUT)
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ampdoctor.probe.watch import device_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kind = fused._KINDS[dtype]
    constants = fused.constants(dtype, exponents=True)
    pointer = f"*i{kind.bits.itemsize * 8}"
    signature = {"bits": pointer, "n": "i32", "counts": "*i64", "ranges": "*i64", "row": "i32"}
    source = ASTSource(device_kernel.tally, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32))
    assert made.asm["ptx"].count("ld.global") > 0


# ---------------------------------------------------------------- without it


class Kernel:
    """In the place of Triton's: fails at each launch, and counts them."""

    def __init__(self, error: Exception) -> None:
        self.error, self.launches = error, 0

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.launches += 1
            raise self.error

        return launch


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tally takes every tensor for a GPU's, and the kernel raises this."""

    def with_error(error: Exception) -> Kernel:
        kernel = Kernel(error)
        monkeypatch.setattr(fused, "_kernel", lambda: SimpleNamespace(tally=kernel))
        monkeypatch.setattr(fused, "_refusals", [])
        monkeypatch.setattr(tally, "_on_gpu", lambda x: True)
        return kernel

    return with_error


def test_a_kernel_that_does_not_compile_is_tried_once_and_torch_counts(failing: Any) -> None:
    kernel = failing(RuntimeError("no C compiler\nin any of 12 folders"))
    assert fused.refusal() == ""
    counted = Tally()
    for value in (1.0, 2.0):
        counted.add(torch.tensor([value, 0.0, math.inf], dtype=torch.float16), None)
    first, second = counted.read()
    assert (kernel.launches, fused.refusal()) == (1, "RuntimeError: no C compiler")
    assert (first.histogram.counts, first.zeros, first.inf, first.max) == ({0: 1}, 1, 1, math.inf)
    assert second.histogram.counts == {1: 1}


def test_running_out_of_memory_is_no_refusal(failing: Any) -> None:
    failing(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError) as raised:
        Tally().add(torch.ones(3), None)
    assert is_out_of_memory(raised.value)
    assert fused.refusal() == ""


def test_a_triton_that_cannot_be_imported_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_refusals", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "ampdoctor.probe.watch.device_kernel", None)
    monkeypatch.delattr("ampdoctor.probe.watch.device_kernel", raising=False)
    assert fused._kernel.__wrapped__() is None
    assert fused.refusal().startswith("ModuleNotFoundError")


def test_without_triton_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_refusals", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fused._kernel.__wrapped__() is None
    assert fused.refusal() == ""
