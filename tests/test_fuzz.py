"""Files made by chance: each is read, or refused in words; whatever is read can be judged and shown.

``AMPDOCTOR_FUZZ=50`` makes fifty times as many of them.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampdoctor.config import parse_config
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.errors import ConfigError
from ampdoctor.facts.trace import Trace
from ampdoctor.gate.baseline import known_of
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules
from ampdoctor.render import FORMATS
from ampdoctor.render.options import Options
from ampdoctor.store import baselines
from ampdoctor.store.codec import FileError, to_bytes
from ampdoctor.store.traces import SCHEMA, parse_trace
from trace_builder import bad_tensor, birth, candidate, parameter, record, reference, step, trace

TIMES = int(os.environ.get("AMPDOCTOR_FUZZ", "1"))


def examples(count: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=count * TIMES, deadline=None, suppress_health_check=checks, derandomize=True)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(
        [10**39, -(10**39), 2**63, 1e308, -0.0, 5e-324, "nan", "inf", "-inf", "", "\x1b[2J", "\n", "é"]
    )
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every node below the root."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [p for key, item in items for p in ((*path, key), *places(item, (*path, key)))]


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three of its nodes replaced, or gone."""
    result = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        found = places(result)
        if not found:
            return result
        *path, last = draw(st.sampled_from(found))
        node = result
        for key in path:
            node = node[key]
        if draw(st.booleans()) and isinstance(node, dict):
            del node[last]
        else:
            node[last] = draw(values)
    return result


def sick_trace() -> Trace:
    sites = (record("fc", "aten::mm", 0, 3.0), record("fc", "aten::mm", 0, 7e4, phase="backward", inf=2))
    return trace(
        bad_tensors=(bad_tensor(),),
        passes=(
            reference(loss=1.0, sites=(record("fc", "aten::mm", 0, 3.0, dtype="float32"),)),
            candidate(loss=float("inf"), sites=sites, parameters=(parameter("fc.weight", nan=1),)),
        ),
        births=(birth(path=(step("fc", "aten::mm"),)),),
    )


TRACE = json.loads(to_bytes(sick_trace(), SCHEMA))


@examples(60)
@given(damaged(TRACE))
def test_a_damaged_trace_is_refused_or_can_be_shown(document: Any) -> None:
    try:
        read = parse_trace(json.dumps(document).encode())
    except FileError as error:
        assert str(error) and "\n" not in str(error)
        return
    report = diagnose(read)
    for name in ("text", "json", "markdown", "github", "sarif", "html"):
        assert FORMATS[name](report, Options())


CONFIG: dict[str, Any] = yaml.safe_load("""
version: 1
model: {target: "m.py:build_model", kwargs: {depth: 2}, checkpoint: w.safetensors}
data: {synthetic: {x: {shape: [2, 3], dtype: float32, low: -1, high: 1}}, batches: 2}
loss: {builtin: mse, kwargs: {}}
optimizer: {target: "m.py:build_optimizer", steps: 3}
precision: {mode: autocast, dtype: float16, device: cpu, emulate: cuda, loss_scale: {dynamic: 1024}}
seed: 3
rules: {select: [AMP], ignore: [AMP205], waivers: [{code: AMP101, reason: known, expires: 2027-01-31}]}
limits: {headroom_bits: 2, "fc.*": {headroom_bits: 1}}
gate: {fail_on: [error], baseline: b.json}
""")


def test_the_config_that_is_damaged_is_a_good_one() -> None:
    assert parse_config(yaml.safe_dump(CONFIG), Path("c.yaml")).optimizer is not None


@examples(100)
@given(damaged(CONFIG))
def test_a_damaged_config_is_refused_in_lines_or_read(document: Any) -> None:
    try:
        parse_config(yaml.safe_dump(document, allow_unicode=True), Path("c.yaml"))
    except ConfigError as error:
        assert error.problems or error.message
        assert all(problem.startswith("c.yaml") for problem in error.problems)


@examples(60)
@given(st.text(max_size=60))
def test_any_text_is_a_config_or_refused(text: str) -> None:
    try:
        parse_config(text, Path("c.yaml"))
    except ConfigError as error:
        assert error.message.startswith("c.yaml")


REPORT = diagnose(sick_trace())
BASELINE = json.loads(baselines.dump({"c.yaml": known_of(REPORT, GateRules(), ())}))


@examples(60)
@given(damaged(BASELINE))
def test_a_damaged_baseline_is_refused_or_can_be_judged_with(document: Any) -> None:
    try:
        sections = baselines.parse(json.dumps(document).encode())
    except FileError as error:
        assert str(error) and "\n" not in str(error)
        return
    for known in sections.values():
        assert evaluate(REPORT, GateRules(), known, "b.json").gate is not None
