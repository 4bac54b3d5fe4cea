"""action.yml and the pre-commit hook: what they hold, what they install, and how they end."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from action_runner import ACTION, ROOT, run_action

STEPS = ACTION["runs"]["steps"]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


# ---------------------------------------------------------------- the documents


def test_the_action_is_composite_and_every_part_is_described() -> None:
    assert (ACTION["runs"]["using"], bool(ACTION["name"]), bool(ACTION["description"])) == (
        "composite",
        True,
        True,
    )
    parts = {**ACTION["inputs"], **ACTION["outputs"]}
    assert [name for name, part in parts.items() if not part.get("description")] == []
    assert all(isinstance(part["default"], str) for part in ACTION["inputs"].values())


def test_every_step_is_named_and_says_its_shell_or_its_commit() -> None:
    for step in STEPS:
        assert step["name"]
        assert step.get("shell") == "bash" if "run" in step else re.search(r"@[0-9a-f]{40}$", step["uses"])


def test_no_input_is_pasted_into_a_script() -> None:
    # An expression inside `run` would let whoever writes an input, such as a branch's name, run commands.
    assert [step["name"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_every_name_in_an_expression_exists() -> None:
    text = (ROOT / "action.yml").read_text()
    used = set(re.findall(r"inputs\.([\w-]+)", text))
    assert used == set(ACTION["inputs"])
    written = set(re.findall(r'echo "([\w-]+)=', text))
    assert set(re.findall(r"steps\.gate\.outputs\.([\w-]+)", text)) == written


def test_the_hook_runs_the_gate_in_the_projects_own_environment() -> None:
    (hook,) = HOOKS
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("ampdoctor-gate", "system", False)
    assert shlex.split(hook["entry"]) == ["ampdoctor", "gate"]


def test_the_guide_names_the_hook_and_every_input() -> None:
    guide = (ROOT / "docs" / "guide" / "ci.md").read_text()
    assert f"- id: {HOOKS[0]['id']}" in guide
    section = guide.partition("## On every pull request")[2].partition("\n## ")[0]
    assert [
        name for name in ACTION["inputs"] if f"`{name}`" not in section and f"{name}:" not in section
    ] == []


# ---------------------------------------------------------------- what is installed


def test_it_installs_the_actions_own_version(tmp_path: Path) -> None:
    run = run_action(tmp_path, tmp_path / "runner", configs="none.yaml")
    assert run.pip[:3] == ["-m", "pip", "install"]
    assert run.pip[-3:] == ["--extra-index-url", "https://download.pytorch.org/whl/cpu", str(ROOT)]


def test_it_installs_a_version_with_extras(tmp_path: Path) -> None:
    run = run_action(
        tmp_path, tmp_path / "runner", configs="none.yaml", version="0.1.0", extras="html,junit", pip_args=""
    )
    assert run.pip[-1] == "ampdoctor[html,junit]==0.1.0"
    assert "--extra-index-url" not in run.pip


def test_it_sets_up_python_only_where_one_is_asked_for(tmp_path: Path) -> None:
    run = run_action(tmp_path, tmp_path / "a", configs="none.yaml")
    assert "actions/setup-python" not in run.used
    run = run_action(tmp_path, tmp_path / "b", configs="none.yaml", python_version="3.12")
    assert run.used["actions/setup-python"] == {"python-version": "3.12"}


# ---------------------------------------------------------------- how it runs (more: test_team_workflow)

MODEL = """
import torch

def build_model():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, {weight})
    return model

def build_batch():
    return torch.full((4, 1), 64.0)
"""

CONFIG = """
model: {target: "models.py:build_model"}
data: {target: "models.py:build_batch"}
loss: none
precision: {device: cpu}
"""


def project(folder: Path, weight: float) -> Path:
    """A checkout with a config and a model whose output is 64 x weight."""
    (folder / "configs").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "configs" / "models.py").write_text(MODEL.format(weight=weight))
    (folder / "configs" / "a b.yaml").write_text(CONFIG)
    (folder / "configs" / "c.yaml").write_text(CONFIG)
    return folder


def test_a_config_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    run = run_action(project(tmp_path / "repo", 1.0), tmp_path / "runner", configs="nowhere/*.yaml")
    assert (run.code, run.ended_by) == (2, "Pass or fail")
    assert "nowhere/*.yaml" in run.stderr


def test_it_starts_from_the_folder_it_is_given_with_more_options_and_without_code_scanning(
    tmp_path: Path,
) -> None:
    run = run_action(
        project(tmp_path / "repo", 1024.0),
        tmp_path / "runner",
        working_directory="configs",
        configs="a b.yaml\nc.yaml\n",
        args="--set=precision.dtype=bfloat16\n--set=seed=1\n",
        sarif="false",
    )
    assert (run.code, run.used) == (0, {}), run.stderr


def test_a_file_named_like_an_option_is_a_file(tmp_path: Path) -> None:
    """A file of a pull request must not reach the gate as an option: that one would forgive everything."""
    folder = project(tmp_path / "repo", 2048.0)
    (folder / "--baseline=x.yaml").write_text(CONFIG.replace("models.py", "configs/models.py"))
    run = run_action(folder, tmp_path / "runner", configs="*.yaml\n")
    assert run.code == 1
    assert "--baseline=x.yaml" in run.stdout


def test_lines_from_windows_with_blanks_around(tmp_path: Path) -> None:
    folder = project(tmp_path / "repo", 1.0)
    run = run_action(
        folder,
        tmp_path / "runner",
        configs="  configs/a b.yaml \r\n\r\nconfigs/c.yaml\r\n",
        args=" --set=seed=1\r\n",
    )
    assert run.code == 0, run.stderr
    assert "a b.yaml" in run.stdout and "c.yaml" in run.stdout
