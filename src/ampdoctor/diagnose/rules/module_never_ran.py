"""AMP902: a module never ran

What it means
    A module with parameters of its own was not called in the scanned batches.
    Nothing is known about it.

How it is found
    By counting forward calls. Modules whose weights are used without calling
    them (the output projection inside nn.MultiheadAttention) are recognised
    by the gradient their weights receive.

What to do
    Often it is meant so: a pooler, an auxiliary head, an expert without
    tokens. If not, give the scan a batch that takes this path, or more
    batches.

Example
    BERT's pooler in a token classifier.
"""

from __future__ import annotations

from collections.abc import Iterator

from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words

_CONTAINERS = ("ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
"""Types whose forward is never called; their children's is."""


def check(reading: Reading) -> Iterator[Finding]:
    """One finding per outermost module with weights that no batch reached; none if the scan was cut short."""
    trace = reading.trace
    if trace.interrupted or any(p.raised for p in trace.passes) or not trace.passes:
        return
    used = {p.name for one in trace.passes for p in one.parameters if p.absmax is not None or p.nan or p.inf}
    idle = {m.path: m for m in trace.modules if not m.calls and m.type not in _CONTAINERS}
    for path, module in idle.items():
        within = [m for m in trace.modules if m.path == path or m.path.startswith(path + ".")]
        if any(m.calls for m in within) or any(name.startswith(path + ".") for name in used):
            continue
        parameters = sum(m.parameters for m in within)
        if parameters and not any(path.startswith(other + ".") for other in idle):
            yield Finding(
                code=CODE,
                severity="info",
                title=TITLE,
                module=path,
                op="",
                source=None,
                message=f"{module.type} with {count_words(parameters, 'weight')} was never called.",
                evidence={"parameters": parameters, "type": module.type},
                remedy="Often meant so. If not, give the scan a batch that takes this path.",
            )


CODE, TITLE = "AMP902", "a module never ran"
RULE = Rule(CODE, TITLE, "info", __doc__ or "", check)
