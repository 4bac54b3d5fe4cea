"""README and guide keep up with the program: the commands, formats, keys and files they ought to name."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from ampdoctor.cli.main import run
from ampdoctor.config import Config, schema
from ampdoctor.render import FORMATS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GUIDE = {page.stem: page.read_text() for page in (ROOT / "docs" / "guide").glob("*.md")}
CONFIG_BLOCK = next(
    block for block in re.findall(r"```yaml\n(.*?)```", GUIDE["config"], re.DOTALL) if "version: 1" in block
)


def test_it_is_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 160


def test_every_command_is_in_the_table() -> None:
    from ampdoctor.cli.main import app

    assert _table("commands") == {command.name for command in app.registered_commands}


def test_every_format_is_in_the_table() -> None:
    assert _table("formats") == set(FORMATS)


def _table(page: str) -> set[str]:
    """The names in the first column of a page's table."""
    return set(re.findall(r"^\| `([a-z-]+)[^`]*` \|", GUIDE[page].partition("\n## ")[0], re.MULTILINE))


def test_the_config_in_the_guide_is_valid() -> None:
    config = Config.model_validate(yaml.safe_load(CONFIG_BLOCK))
    assert config.precision == schema.PrecisionSection()
    assert config.rules == schema.RulesSection()
    assert config.limits.headroom_bits == schema.LimitsSection().headroom_bits
    assert config.gate == schema.GateSection()


@pytest.mark.parametrize(
    "section",
    [
        Config,
        schema.ModelSection,
        schema.PrecisionSection,
        schema.RulesSection,
        schema.LimitsSection,
        schema.GateSection,
    ],
    ids=lambda section: section.__name__,
)
def test_every_key_of_the_config_is_explained(section: type[BaseModel]) -> None:
    assert [name for name in section.model_fields if f"{name}:" not in CONFIG_BLOCK] == []


@pytest.mark.parametrize(
    "document",
    ["README.md", "CONTRIBUTING.md", "docs/DESIGN.md", *sorted(f"docs/guide/{name}.md" for name in GUIDE)],
)
def test_the_files_it_points_to_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    paths = re.findall(r"`((?:tests|docs|src|sample_configs|benchmarks)/[\w./]+)`", text)
    made = "../rules/index.md"  # of the site
    missing = [
        link for link in links if link != made and not (ROOT / document).parent.joinpath(link).exists()
    ]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_the_samples_it_scans_exist() -> None:
    named = set(re.findall(r"sample_configs/\w+\.yaml", README + (ROOT / "Makefile").read_text()))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_test_that_the_kinds_of_misdiagnosis_name_exists() -> None:
    tests = Path(__file__).parent
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", (tests.parent / "docs" / "KINDS.md").read_text())
    assert len(named) > 15
    missing = [
        (file, name)
        for file, name in named
        if not (tests / file).is_file() or f"def {name}" not in (tests / file).read_text()
    ]
    assert missing == []


@pytest.mark.parametrize("page", ["README.md", "docs/guide/prescribe.md"])
def test_the_output_that_is_shown_is_what_the_commands_print(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for samples in ("sample_configs", "sample_scripts"):
        shutil.copytree(ROOT / samples, tmp_path / samples)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```\n(\$ ampdoctor .*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for part in (part for block in blocks for part in block.split("$ ampdoctor ")[1:]):
        command, *shown = part.rstrip("\n").split("\n")
        assert run(shlex.split(command)) == (1 if command.startswith("gate") else 0)
        out, err = capsys.readouterr()
        printed = iter((err if command.startswith("run") else out).split("\n"))
        missing = [line for line in shown if line and line not in printed]  # in their order
        assert not missing, command
