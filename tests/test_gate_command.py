"""``ampdoctor gate`` in a repository: from a clean build over a fault and a baseline to an expired waiver."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ampdoctor.cli.main import run
from gate_runs import gate

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8, bias=False)
        self.last = torch.nn.Linear(8, 1, bias=False)
        torch.nn.init.constant_(self.first.weight, 2.0)
        torch.nn.init.constant_(self.last.weight, 0.125)

    def forward(self, x):
        h = self.first(x) * FACTOR
        return self.last(h)


def build_model():
    return Net()


def build_batch():
    return torch.ones(4, 8)


def compute_loss(model, batch):
    return (model(batch).float() * 1e-6).mean()
"""
"""first makes 16, times FACTOR; last adds eight eighths of that up: 16 * FACTOR again. FP16 ends at 65504."""


CONFIG = """\
model: {target: ../model.py:build_model}
data: {target: ../model.py:build_batch}
loss: {target: ../model.py:compute_loss}
precision: {device: cpu}
"""


FAULT = "self.first(x) * FACTOR"


class Repository:
    """A checkout with a model, and configs under ``checks/``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        (root / "checks").mkdir()
        self.model(1.0)
        self.config()

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.root, check=True)

    def model(self, factor: float, above: str = "") -> None:
        (self.root / "model.py").write_text(above + MODEL.replace("FACTOR", repr(factor)))

    def config(self, name: str = "net", more: str = "") -> None:
        (self.root / "checks" / f"{name}.yaml").write_text(CONFIG + more)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.chdir(tmp_path)
    return Repository(tmp_path)


# ---------------------------------------------------------------- a repository's life


def test_a_clean_repository_passes_and_the_emulation_is_named(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    out, last = gate(capsys, "checks/net.yaml", code=0)
    assert out.startswith(" ampdoctor gate  checks/net.yaml\n")
    assert " PASSED  CLEAN. " in out
    assert "CUDA was emulated on a CPU: no GPU kernel ran (AMP901)." in out
    assert last == ""


def test_a_change_that_makes_a_layer_overflow_fails_at_its_line(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 * 8188 is twice 65504, made in line 13 of the model."""
    repository.model(8188.0)
    out, last = gate(capsys, "checks/net.yaml", "--format", "json", code=1)
    (report,) = json.loads(out)["reports"]
    (check,) = report["gate"]["checks"]
    assert (check["code"], check["op"], check["by"]) == ("AMP101", "aten::mul", "1.0 bits past 65,504")
    assert Path(check["source"]["file"]) == repository.root / "model.py"
    assert check["source"]["line"] == 13
    assert last == (
        "gate failed: checks/net.yaml: AMP101 forward overflow, top-level code (model.py:13): "
        "1.0 bits past 65,504"
    )


@pytest.mark.parametrize(
    ("more", "key", "code"),
    [
        ("rules: {select: [AMP1, AMP130]}\n", "rules.select", "AMP130"),
        ("gate: {fail_on: [error, AMP8]}\n", "gate.fail_on", "AMP8"),
    ],
)
def test_a_code_that_no_rule_has_turns_no_gate_green(
    repository: Repository, capsys: pytest.CaptureFixture[str], more: str, key: str, code: str
) -> None:
    repository.model(8188.0)
    repository.config(more=more)
    _, last = gate(capsys, "checks/net.yaml", code=2)
    assert last == f"error: checks/net.yaml: {key}: there is no rule {code}"


def test_the_baseline_accepts_an_old_fault_and_rejects_a_worse_one(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.model(8188.0)
    gate(capsys, "checks/net.yaml", "--update-baseline", code=0)
    written = json.loads((repository.root / "checks" / "ampdoctor-baseline.json").read_text())
    (known,) = written["configs"]["net.yaml"]["findings"]
    assert (known["code"], known["line"]) == ("AMP101", "h = self.first(x) * 8188.0")
    assert known["overflow_bits"] == 1.0

    repository.model(8188.0, above="# moved down\n\n\n")
    out, _ = gate(capsys, "checks/net.yaml", code=0)
    assert "known AMP101 top-level code: The exact value is 131,008" in out

    # The same line and a worse value: the weights grew eightfold, three bits.
    worse = MODEL.replace("first.weight, 2.0", "first.weight, 16.0").replace("FACTOR", "8188.0")
    (repository.root / "model.py").write_text(worse)
    _, last = gate(capsys, "checks/net.yaml", code=1)
    assert last == (
        "gate failed: checks/net.yaml: AMP101 forward overflow, top-level code (model.py:13): "
        "4.0 bits past the format's end instead of 1.0; and 1 more check"
    )

    repository.model(1.0)
    out, _ = gate(capsys, "checks/net.yaml", code=0)
    assert "Gone       AMP101 in top-level code (h = self.first(x) * 8188.0)" in out


def test_headroom_lost_against_the_baseline_fails(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 16 to 4096: eight bits, in a model that is still clean."""
    gate(capsys, "checks/net.yaml", "--update-baseline", code=0)
    repository.model(256.0)
    out, last = gate(capsys, "checks/net.yaml", code=1)
    assert " FAILED " in out
    assert "AMP103 headroom lost against the baseline" in last
    assert last.endswith(": 8.0 bits lost, 0.5 allowed; and 1 more check")


def test_an_expired_waiver_is_reported_and_its_finding_fails(
    repository: Repository, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.model(8188.0)
    waiver = '{code: AMP101, module: "", reason: rewritten in spring, expires: 2027-03-31}'
    repository.config(more=f"rules: {{waivers: [{waiver}]}}\n")
    monkeypatch.setattr("ampdoctor.cli.gate_subjects.today", lambda: "2027-03-31")
    out, _ = gate(capsys, "checks/net.yaml", code=0)
    assert "waived AMP101 top-level code" in out
    monkeypatch.setattr("ampdoctor.cli.gate_subjects.today", lambda: "2027-04-01")
    out, last = gate(capsys, "checks/net.yaml", code=1)
    assert "Waivers    AMP101 top-level code expired on 2027-03-31 (rewritten in spring)" in out
    assert "Its waiver expired on 2027-03-31." in " ".join(out.split())
    assert last.startswith("gate failed: checks/net.yaml: AMP101 forward overflow")


def test_a_limit_per_layer_fails_a_model_that_is_clean(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """last makes 16 * 1024 = 16384, two bits below 65536 and a little less below 65504."""
    repository.model(1024.0)
    gate(capsys, "checks/net.yaml", code=0)
    repository.config(more='limits: {"last": {headroom_bits: 3}}\n')
    _, last = gate(capsys, "checks/net.yaml", code=1)
    assert last == (
        "gate failed: checks/net.yaml: AMP103 less headroom than the limit, last (model.py:14): "
        "1.0 bits short"
    )


# ---------------------------------------------------------------- several configs


def test_several_configs_are_all_judged_and_the_worst_decides(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.config("strict", more='limits: {"last": {headroom_bits: 99}}\n')
    repository.config("typo", more="precison: {}\n")
    (repository.root / "checks" / "broken.yaml").write_text(CONFIG.replace("build_model", "no_such"))
    names = [f"checks/{name}.yaml" for name in ("typo", "broken", "strict", "net")]
    capsys.readouterr()
    assert run(["gate", *names, "--output", "json=gate.json"]) == 2
    out, err = capsys.readouterr()
    assert " 4 configs: 1 passed, 1 failed, 2 not run.\n" in out
    document = json.loads((repository.root / "gate.json").read_text())
    assert document["status"] == "unusable"
    statuses = [report["gate"]["status"] for report in document["reports"]]
    assert statuses == ["unusable", "unusable", "failed", "passed"]
    *_, failed, typo, broken = err.splitlines()
    assert failed.startswith("gate failed: checks/strict.yaml: AMP103 less headroom than the limit, last")
    assert typo == "error: checks/typo.yaml:5: precison: unknown key; did you mean 'precision'?"
    assert broken.startswith("error: checks/broken.yaml: model.target: ../model.py has no 'no_such'")


def test_an_exception_of_ours_in_one_config_stops_no_other(
    repository: Repository, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ampdoctor.diagnose import engine

    real = engine.diagnose

    def fails_once(*arguments: object) -> object:
        monkeypatch.setattr(engine, "diagnose", real)
        raise KeyError("x")

    repository.config("other")
    monkeypatch.setattr(engine, "diagnose", fails_once)
    out, last = gate(capsys, "checks/net.yaml", "checks/other.yaml", code=3)
    assert " 2 configs: 1 passed, 1 not measured.\n" in out
    assert last == "gate not measured: checks/net.yaml: this is a bug in ampdoctor (KeyError: 'x')"


def test_an_interruption_leaves_nothing_green(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    model = repository.root / "model.py"
    model.write_text(MODEL.replace("FACTOR", "1.0") + "\n\ndef stop(*_):\n    raise KeyboardInterrupt\n")
    stopped = CONFIG.replace("compute_loss", "stop")
    (repository.root / "checks" / "stopped.yaml").write_text(stopped)
    out, last = gate(capsys, "checks/stopped.yaml", "checks/net.yaml", "--update-baseline", code=3)
    assert " 2 configs: 2 not measured.\n" in out
    assert last == "gate not measured: checks/net.yaml: The gate was interrupted before it."
    assert not (repository.root / "checks" / "ampdoctor-baseline.json").exists()


def test_one_baseline_for_several_configs_keeps_the_sections_of_others(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.config("other")
    baseline = ("--baseline", "baseline.json")
    gate(capsys, "checks/net.yaml", *baseline, "--update-baseline", code=0)
    first = json.loads((repository.root / "baseline.json").read_text())["configs"]
    gate(capsys, "checks/other.yaml", *baseline, "--update-baseline", code=0)
    both = json.loads((repository.root / "baseline.json").read_text())["configs"]
    assert list(both) == ["checks/net.yaml", "checks/other.yaml"]
    assert both["checks/net.yaml"] == first["checks/net.yaml"]


def test_a_config_that_the_baseline_does_not_know_is_named(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.config("other")
    gate(capsys, "checks/net.yaml", "--update-baseline", code=0)
    out, _ = gate(capsys, "checks/other.yaml", code=0)
    note = "checks/ampdoctor-baseline.json has no section for other.yaml: everything counts as new."
    assert note in " ".join(out.split())
