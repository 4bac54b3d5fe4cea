"""``ampdoctor explain``: a rule's page, or the list of rules."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from ampdoctor.cli.output import print_document
from ampdoctor.errors import ConfigError

_LOOKS_LIKE_A_DIGIT = str.maketrans("OIL", "011")


def explain(
    code: Annotated[str | None, typer.Argument(help="A rule's code, such as AMP101.")] = None,
) -> None:
    """Print what a rule means, how it is found and what to do; without a code, list all rules."""
    from ampdoctor.diagnose.loop.rule import LoopRule
    from ampdoctor.diagnose.loop.rules import LOOP_RULES
    from ampdoctor.diagnose.rule import Rule
    from ampdoctor.diagnose.rules import RULES

    every: list[Rule | LoopRule] = [*RULES, *LOOP_RULES]
    rules = sorted(every, key=lambda rule: rule.code)

    if code is None:
        print_document("".join(f"{r.code}  {r.severity:<7}  {r.title}\n" for r in rules))
        return
    pages = {rule.code: rule.page for rule in rules}
    wanted = code.strip().upper()
    if wanted.isdigit():
        wanted = f"AMP{wanted}"
    if wanted not in pages:
        digits = wanted.translate(_LOOKS_LIKE_A_DIGIT)
        near = [digits] if digits in pages else difflib.get_close_matches(wanted, pages, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"there is no rule {code}", hint=f"{hint}`ampdoctor explain` lists all rules")
    print_document(pages[wanted].strip() + "\n")
