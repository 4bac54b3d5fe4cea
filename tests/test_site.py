"""The documentation site: every rule and key has its place; the tutorial shows what is printed."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from ampdoctor.cli.main import app, run
from ampdoctor.config import Config
from ampdoctor.diagnose.loop.rules import LOOP_RULES
from ampdoctor.diagnose.rules import RULES

ROOT = Path(__file__).parent.parent
CODES = {rule.code for rule in (*RULES, *LOOP_RULES)}


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    site.site(folder)
    return folder


def test_every_rule_has_a_page_with_all_its_sections(pages: Path) -> None:
    assert {p.stem for p in (pages / "rules").glob("AMP*.md")} == CODES
    text = (pages / "rules" / "AMP101.md").read_text()
    assert text.startswith("# AMP101: forward overflow\n")
    assert "## What it means" in text
    assert "\n1. Run this op in FP32: torch.autocast(device\\_type, enabled=False)" in text


def test_every_link_between_pages_leads_somewhere(pages: Path) -> None:
    dead = [
        f"{page.name}: {link}"
        for page in pages.rglob("*.md")
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
        if "://" not in link and not (page.parent / link).is_file()
    ]
    assert dead == []


def test_every_page_is_in_the_navigation(pages: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r": ([\w/]+\.md)$", text, re.MULTILINE))
    made = {p.relative_to(pages).as_posix() for p in pages.rglob("*.md")}
    assert named == {name for name in made if not name.startswith("rules/AMP")}
    assert yaml.safe_load(text)["theme"]["font"] is False  # else each page asks a server for one


def test_the_keys_of_config_and_report_are_listed(pages: Path) -> None:
    config = (pages / "guide" / "config.md").read_text()
    assert [key for key in Config.model_fields if f"| `{key}` |" not in config and key != "directory"] == []
    assert "| `ops` | array of OpRow |" in (pages / "json.md").read_text()


@pytest.mark.parametrize("page", ["symptoms.md", "frameworks.md", "tutorial.md"])
def test_what_the_guide_names_exists(page: str) -> None:
    text = (ROOT / "docs" / "guide" / page).read_text()
    assert set(re.findall(r"AMP\d{3}", text)) <= CODES
    commands = {command.name for command in app.registered_commands}
    assert {name for name in re.findall(r"ampdoctor ([a-z-]+) ", text) if name not in commands} == set()


def test_the_tutorial_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sample_configs").symlink_to(ROOT / "sample_configs")
    monkeypatch.chdir(tmp_path)
    tutorial = (ROOT / "docs" / "guide" / "tutorial.md").read_text()
    blocks = re.findall(r"```\n\$ ampdoctor (.*?)```", tutorial, re.DOTALL)
    assert [block.split()[0] for block in blocks] == ["scan", "prescribe", "scan", "gate"]
    for block in blocks:
        command, *shown = block.rstrip("\n").split("\n")
        assert run([*shlex.split(command), "--quiet"]) == 0
        printed = iter(capsys.readouterr().out.split("\n"))
        missing = [line for line in shown if line and line not in printed]  # in their order
        assert not missing, command
