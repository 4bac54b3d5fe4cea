"""``--ops``: which op ran in which dtype, by module, and what autocast's casts move."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampdoctor.cli.main import run
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.report import OpRow
from ampdoctor.render import FORMATS
from ampdoctor.render.ops_text import moved
from ampdoctor.render.options import Options
from trace_builder import candidate, module, record, reference, trace

MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(16, 16)

    def forward(self, x):
        scores = self.q(x) @ x.transpose(1, 2)
        return (torch.softmax(scores, -1) @ x).square().mean()


def build_batch():
    return torch.linspace(-1, 1, 128).reshape(2, 4, 16)
"""


def test_rows_hold_calls_elements_and_what_casts_move() -> None:
    sites = (
        record("q", "aten::_to_copy", 0, numel=10, implicit_cast=True),
        record("q", "aten::_to_copy", 1, numel=6, nth=1, implicit_cast=True),
        record("q", "aten::_to_copy", 2, numel=3, nth=2),
        record("q", "aten::addmm", 3, numel=8),
        record("", "aten::_softmax", 4, numel=8, dtype="float32"),
        record("q", "aten::_to_copy", 5, numel=8, phase="backward", dtype="float32", implicit_cast=True),
    )
    report = diagnose(trace(modules=(module("q"),), passes=(reference(), candidate(sites=sites))))
    assert report.ops == (
        OpRow("q", "forward", "aten::_to_copy", "float16", 2, 16, True, 96),  # 16 of 4 read and 2 written
        OpRow("q", "forward", "aten::_to_copy", "float16", 1, 3, False, 0),
        OpRow("q", "forward", "aten::addmm", "float16", 1, 8, False, 0),
        OpRow("", "forward", "aten::_softmax", "float32", 1, 8, False, 0),
        OpRow("q", "backward", "aten::_to_copy", "float32", 1, 8, True, 48),
    )
    shown = FORMATS["text"](report, Options(ops=True))
    assert "Autocast puts in 3 casts, which read and write 144 B." in shown
    assert "Ops, forward" not in FORMATS["text"](report, Options())
    assert "Autocast puts in 3 casts" in FORMATS["html"](report, Options(ops=True))
    assert "Ops and their dtypes" not in FORMATS["html"](report, Options())


def test_what_is_moved_is_short() -> None:
    assert [moved(n) for n in (0, 960, 2400, 13_100_000, 2_000_000_000)] == [
        "",
        "960 B",
        "2.4 kB",
        "13.1 MB",
        "2.0 GB",
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("att.py").write_text(MODEL)
    return tmp_path


def test_is_my_softmax_in_fp32(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """x, the weight and the bias are cast for the product: 128 + 256 + 16 elements of 6 bytes."""
    arguments = ["scan", "--model", "att.py:Attention", "--data", "att.py:build_batch", "--quiet"]
    assert run([*arguments, "--ops", "--save", "trace.json"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["_softmax", "float32", "1"] in lines
    assert ["q", "cast", "by", "autocast", "float16", "3", "2.4", "kB"] in lines
    assert ["addmm", "float16", "1"] in lines
    assert max(len(line) for line in out.splitlines()) <= 80
    assert run(["report", "trace.json", "--ops"]) == 0
    assert out.partition(" Ops, forward")[2] == capsys.readouterr().out.partition(" Ops, forward")[2]
