"""The rules, one file each, listed by hand. A rule is its file and its line here."""

from __future__ import annotations

from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.rules import (
    amp101,
    amp102,
    amp103,
    amp104,
    amp105,
    amp106,
    amp107,
    amp201,
    amp202,
    amp203,
    amp204,
    amp205,
    amp206,
    amp301,
    amp302,
    amp303,
    amp901,
    amp902,
    amp903,
    amp904,
    amp905,
)

RULES: tuple[Rule, ...] = (
    amp101.RULE,
    amp102.RULE,
    amp103.RULE,
    amp104.RULE,
    amp105.RULE,
    amp106.RULE,
    amp107.RULE,
    amp201.RULE,
    amp202.RULE,
    amp203.RULE,
    amp204.RULE,
    amp205.RULE,
    amp206.RULE,
    amp301.RULE,
    amp302.RULE,
    amp303.RULE,
    amp901.RULE,
    amp902.RULE,
    amp903.RULE,
    amp904.RULE,
    amp905.RULE,
)
