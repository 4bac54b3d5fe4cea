"""Writes the pages that the documentation site is built from into a folder: ``make docs`` runs it.

What the code or the README says is taken from there; ``docs/guide`` and the design come on top.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from ampdoctor.diagnose.loop.rules import LOOP_RULES
from ampdoctor.diagnose.rules import RULES
from ampdoctor.render.html.rule_sections import sections

ROOT = Path(__file__).parent.parent
PAGES = {
    "Commands": "commands.md",
    "Formats": "formats.md",
    "The HTML report": "formats.md",
    "The smallest change that cures it": "prescribe.md",
    "Where the gradients lie": "gradients.md",
    "What a loss scaler would do": "scaler.md",
    "In Python and in tests": "python.md",
    "A check that fails a build": "ci.md",
    "On every pull request": "ci.md",
    "A script as it is": "run.md",
    "The config": "config.md",
    "What is emulated on a CPU, and what was not run on a GPU": "limits.md",
}
"""Sections of the README that are pages here; the others stay on the first page."""
COPIED = ("DESIGN.md", "EMULATION.md", "LOOP.md", "KINDS.md", "RECORDER.md")
DOCUMENTS = ("report", "run", "prescription")
"""The schemas of what programs read; the config's stands on its own page."""


def site(folder: Path) -> None:
    """Nothing; every page is in the folder, which held nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "rules").mkdir(parents=True)
    shutil.copytree(ROOT / "docs" / "guide", folder / "guide")
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, folder)
    for name in COPIED:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8").replace("](../", "](")
        (folder / name.lower()).write_text(_links(text, "index.md", {}), encoding="utf-8")
    for name, text in readme_pages().items():
        if name == "config.md":
            text += "\n".join(("\n## Every key", *schema_tables("config", 3)))
        (folder / name).write_text(text, encoding="utf-8")
    for name, text in rule_pages():
        (folder / "rules" / name).write_text(text, encoding="utf-8")
    lines = [
        "# JSON documents",
        "",
        "`ampdoctor schema report` prints a schema whole; this is what is in it.",
    ]
    for name in DOCUMENTS:
        lines += ["", f"## {name}", *schema_tables(name, 3)]
    (folder / "json.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def readme_pages() -> dict[str, str]:
    """The README as pages by file name; a link to a section leads to the page that it is on."""
    first, *parts = re.split(r"^## ", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {"index.md": first}
    anchors = {}
    for part in parts:
        heading, _, body = part.partition("\n")
        page = PAGES.get(heading, "index.md")
        anchors[_anchor(heading)] = page
        level = "# " if page not in pages else "## "
        pages[page] = pages.get(page, "") + f"{level}{heading}\n{body}"
    return {page: _links(text, page, anchors) for page, text in pages.items()}


def rule_pages() -> Iterator[tuple[str, str]]:
    """(file name, page) of every rule, and of their list."""
    every: list[Any] = [*RULES, *LOOP_RULES]
    rows = ["# Rules", "", "| code | severity | finding |", "|---|---|---|"]
    for rule in sorted(every, key=lambda rule: rule.code):
        rows.append(f"| [{rule.code}]({rule.code}.md) | {rule.severity} | {_escaped(rule.title)} |")
        page = [f"# {rule.code}: {_escaped(rule.title)}"]
        for section in sections(rule.page):
            page += ["", f"## {_escaped(section.heading)}"]
            for block in section.blocks:
                mark = "1. " if block.numbered else ""
                page += ["", *(f"{mark}{_escaped(text)}" for text in block.texts)]
        yield f"{rule.code}.md", "\n".join(page) + "\n"
    yield "index.md", "\n".join(rows) + "\n"


def schema_tables(name: str, level: int) -> Iterator[str]:
    """A table of the keys of a shipped schema, and one of each object in it."""
    schema = json.loads(files("ampdoctor.schemas").joinpath(f"{name}.schema.json").read_text("utf-8"))
    yield from _table(schema)
    for title, part in schema.get("$defs", {}).items():
        if "properties" in part:
            yield from ("", f"{'#' * level} {title}", "", _escaped(part.get("description", "")))
            yield from _table(part)


def _table(schema: dict[str, Any]) -> Iterator[str]:
    yield from ("", "| key | type | what it is |", "|---|---|---|")
    for key, value in schema["properties"].items():
        default = f" Default: `{json.dumps(value['default'])}`." if "default" in value else ""
        words = _escaped(value.get("description", "")) + default
        yield f"| `{key}` | {_escaped(_type(value))} | {words} |".replace("\n", " ")


def _type(value: dict[str, Any]) -> str:
    """``array of LayerRow, or null``."""
    for key in ("anyOf", "oneOf"):
        if key in value:
            return " or ".join(dict.fromkeys(_type(one) for one in value[key]))
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "enum" in value:
        return ", ".join(json.dumps(one) for one in value["enum"])
    if "const" in value:
        return json.dumps(value["const"])
    if value.get("type") == "array" and isinstance(value.get("items"), dict):
        return f"array of {_type(value['items'])}"
    kind = value.get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(kind)


def _links(text: str, page: str, anchors: dict[str, str]) -> str:
    """The text with its links as they are on the site; a file that it does not have is named without."""

    def one(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if target.startswith("#"):
            return f"[{words}]({anchors.get(target[1:], page)}{target})"
        name = target.removeprefix("docs/")
        if "://" in target or name.endswith(".svg"):
            return f"[{words}]({name})"
        path, _, anchor = name.partition("#")
        if path in COPIED:
            return f"[{words}]({path.lower()}{'#' + anchor if anchor else ''})"
        return words

    return re.sub(r"\[([^\]\n]+)\]\(([^)\s]+)\)", one, text)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _escaped(text: str) -> str:
    """Text in which Markdown sees nothing but text."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


if __name__ == "__main__":
    site(Path(sys.argv[1]))
