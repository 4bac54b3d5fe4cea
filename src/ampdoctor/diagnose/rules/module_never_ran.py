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

from collections import Counter
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
    busy = {above for path in (*used, *(m.path for m in trace.modules if m.calls)) for above in _up(path)}
    idle = {m.path: m for m in trace.modules if not m.calls and m.type not in _CONTAINERS}
    weights: Counter[str] = Counter()
    for module in trace.modules:
        for above in _up(module.path):
            weights[above] += module.parameters
    for path, module in idle.items():
        parameters = weights[path]
        if path not in busy and parameters and not any(other in idle for other in _up(path)[1:]):
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


def _up(path: str) -> list[str]:
    """The path and those above it, without the root: ``a.b``, ``a``."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


CODE, TITLE = "AMP902", "a module never ran"
RULE = Rule(CODE, TITLE, "info", __doc__ or "", check)
