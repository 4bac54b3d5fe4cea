"""A rule's page for formats other than the terminal, which shows it as it is written."""

from __future__ import annotations

import re

from ampdoctor.diagnose.rule import Rule
from ampdoctor.render.markdown_words import escaped

_LINE = re.compile(r"( *)(\d+\. +)?(.*)")


def page_markdown(rule: Rule) -> str:
    """The page as Markdown: headings, paragraphs and numbered lists, no code blocks."""
    lines = []
    in_list = False
    for line in rule.page.strip().splitlines()[1:]:
        match = _LINE.fullmatch(line.removeprefix("    "))
        assert match is not None  # every part of the pattern may be empty
        indent, number, text = match.groups(default="")
        if line and not line.startswith(" "):
            lines += [f"## {escaped(line)}", ""]
            continue
        if in_list and text and not indent and not number:
            lines.append("")  # else the paragraph after a list would be its last item's
        in_list = bool(number) or (in_list and bool(indent))
        lines.append(indent + number + escaped(text))
    return "\n".join(lines).strip() + "\n"


def first_paragraph(rule: Rule) -> str:
    """What the rule means, in a few sentences on one line."""
    _, _, body = rule.page.strip().partition("\n\n")
    _, _, paragraph = body.partition("\n")
    return " ".join(paragraph.partition("\n\n")[0].split())
