"""Runs action.yml's steps the way a runner does: its shell steps for real, other actions only noted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())

PYTHON = f"""#!/bin/sh
# Installs nothing: notes what pip was asked for. Everything else is this test's own Python.
if [ "$1 $2" = "-m pip" ]; then printf '%s\\n' "$@" >> "$PIP_LOG"; exit 0; fi
exec {shlex.quote(sys.executable)} "$@"
"""


@dataclass
class ActionRun:
    """What a run of the action did."""

    code: int = 0
    """The exit code of the step that ended it; 0 where every step passed."""
    ended_by: str = ""
    """That step's name."""
    stdout: str = ""
    stderr: str = ""
    summary: str = ""
    """What was written for the run's summary page."""
    pip: list[str] = field(default_factory=list)
    """The arguments that python got to install."""
    used: dict[str, dict[str, str]] = field(default_factory=dict)
    """Other actions that were called, with their inputs."""
    outputs: dict[str, str] = field(default_factory=dict)


def run_action(workspace: Path, temporary: Path, **inputs: str) -> ActionRun:
    """The action on a checkout, as a job's step with these inputs (``_`` for ``-``) would run it."""
    given = {name.replace("_", "-"): value for name, value in inputs.items()}
    assert set(given) <= set(ACTION["inputs"]), given
    context = {f"inputs.{name}": given.get(name, spec["default"]) for name, spec in ACTION["inputs"].items()}
    context |= {"github.action_path": str(ROOT), "runner.temp": str(temporary)}
    temporary.mkdir()
    run, summary = ActionRun(), temporary / "summary.md"
    for number, step in enumerate(ACTION["runs"]["steps"]):
        if "if" in step and not _holds(step["if"], context):
            continue
        if "uses" in step:
            run.used[step["uses"].partition("@")[0]] = _filled(step["with"], context)
            continue
        output = temporary / f"output-{number}"
        done = _shell(step, workspace, temporary, context, output, summary)
        run.stdout, run.stderr = run.stdout + done.stdout, run.stderr + done.stderr
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            context[f"steps.{step['id']}.outputs.{name}"] = value
        if done.returncode:
            run.code, run.ended_by = done.returncode, step["name"]
            break
    run.summary = summary.read_text()
    run.pip = (temporary / "pip.log").read_text().splitlines()
    run.outputs = {name: _fill(spec["value"], context) for name, spec in ACTION["outputs"].items()}
    return run


def _shell(
    step: Mapping[str, Any],
    workspace: Path,
    temporary: Path,
    context: Mapping[str, str],
    output: Path,
    summary: Path,
) -> subprocess.CompletedProcess[str]:
    """One shell step, started as GitHub documents ``shell: bash``."""
    binaries = temporary / "bin"
    binaries.mkdir(exist_ok=True)
    python = binaries / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    for file in (output, summary, temporary / "pip.log"):
        file.touch()
    script = temporary / "step.sh"
    script.write_text(_fill(step["run"], context))
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PIP_LOG": str(temporary / "pip.log"),
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(workspace),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        **_filled(step.get("env", {}), context),
    }
    assert step["shell"] == "bash"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        cwd=workspace / _fill(step.get("working-directory", "."), context),
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def _filled(values: Mapping[str, str], context: Mapping[str, str]) -> dict[str, str]:
    return {name: _fill(str(value), context) for name, value in values.items()}


def _fill(text: str, context: Mapping[str, str]) -> str:
    """The text with every ``${{ name }}`` replaced; a name that a step never set is empty."""
    return re.sub(r"\$\{\{\s*([\w.-]+)\s*\}\}", lambda found: context.get(found[1], ""), text)


def _holds(condition: str, context: Mapping[str, str]) -> bool:
    """A step's ``if``: comparisons with a text, joined by ``&&``."""
    for part in condition.split("&&"):
        compared = re.fullmatch(r"\s*([\w.-]+)\s*(==|!=)\s*'([^']*)'\s*", part)
        assert compared is not None, condition
        name, sign, text = compared.groups()
        if (context.get(name, "") == text) != (sign == "=="):
            return False
    return True
