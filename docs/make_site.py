"""Writes the pages that the documentation site is built from into a folder: ``make docs`` runs it.

The README, ``docs/guide`` and the design as they are; rules, keys and JSON documents from the code.
"""

from __future__ import annotations

import json
import posixpath
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
    "README.md": "index.md",
    **{
        f"docs/{name}.md": f"{name.lower()}.md"
        for name in ("DESIGN", "EMULATION", "LOOP", "KINDS", "RECORDER")
    },
    **{f"docs/guide/{page.name}": f"guide/{page.name}" for page in (ROOT / "docs" / "guide").glob("*.md")},
}
"""{file of the repository: page}"""
DOCUMENTS = ("report", "run", "prescription")
"""The schemas of what programs read; the config's stands on its own page."""


def site(folder: Path) -> None:
    """Nothing; every page is in the folder, which held nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for room in ("rules", "guide"):
        (folder / room).mkdir(parents=True)
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, folder)
    for source, page in PAGES.items():
        text = _links((ROOT / source).read_text(encoding="utf-8"), source)
        if page == "guide/config.md":
            text += "\n".join(("\n## Every key", *schema_tables("config", 3))) + "\n"
        (folder / page).write_text(text, encoding="utf-8")
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


def _links(text: str, source: str) -> str:
    """The file's text with its links as they are on the site; what it does not have is named without."""
    here, there = posixpath.dirname(source), posixpath.dirname(PAGES[source])

    def one(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        path, mark, anchor = target.partition("#")
        if not path or "://" in target:
            return match[0]
        file = posixpath.normpath(posixpath.join(here, path))
        if file.endswith(".svg"):
            page: str | None = posixpath.basename(file)
        else:
            page = "rules/index.md" if file == "docs/rules/index.md" else PAGES.get(file)
        return words if page is None else f"[{words}]({posixpath.relpath(page, there)}{mark}{anchor})"

    return re.sub(r"\[([^\]\n]+)\]\(([^)\s]+)\)", one, text)


def _escaped(text: str) -> str:
    """Text in which Markdown sees nothing but text."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


if __name__ == "__main__":
    site(Path(sys.argv[1]))
