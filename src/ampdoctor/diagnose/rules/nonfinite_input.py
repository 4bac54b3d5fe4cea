"""AMP105: non-finite before anything ran

What it means
    A weight, a buffer or a tensor of the batch holds NaN or inf from the
    start. No op made it, and no precision cures it. An infinity in a buffer
    or batch that harms nothing is taken for a mask and not reported.

How it is found
    Every parameter, buffer and batch tensor is counted before the first pass,
    and followed through the model. Severity is error where it reaches the
    loss, and for parameters always; warning where it reaches only gradients
    (labels that are NaN where they are missing); info where a NaN reaches
    nothing.

What to do
    Batch: drop or mend the sample, look at the loader, at divisions in
    preprocessing, at cached features written by an earlier FP16 run. Weights:
    the checkpoint was saved after a bad step; go back to an earlier one.
    Buffers: BatchNorm's running statistics keep a NaN for ever after one bad
    batch; reset them.

Example
    Cached latents with NaN in sample 3: the run fails in every precision, and
    FP16 is blamed.

Sources
    kohya-ss/sd-scripts#1413 (cached encoder outputs), pytorch/pytorch#89543
    (NaN labels), pytorch/pytorch#88474 (batch norm statistics).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ampdoctor.diagnose.amounts import Amounts
from ampdoctor.diagnose.report import Finding
from ampdoctor.diagnose.rule import Rule
from ampdoctor.diagnose.standing import INPUT, JudgedBirth
from ampdoctor.diagnose.verdict import Reading
from ampdoctor.diagnose.wording import count_words, element, sample_words
from ampdoctor.facts.trace import BadTensor
from ampdoctor.facts.words import Severity

_REMEDIES = {
    "batch": "Drop or mend {samples}; look at the loader, at preprocessing and at cached features.",
    "parameter": "Load an earlier checkpoint: this one was saved after a bad step.",
    "buffer": "Reset this buffer (running statistics keep a NaN for ever), or load an earlier checkpoint.",
}


def check(reading: Reading) -> Iterator[Finding]:
    """One finding per tensor that is bad from the start and matters."""
    reach = {(j.birth.origin, j.birth.name): j for j in _worst_last(reading.births)}
    for bad in reading.trace.bad_tensors:
        severity = _severity(bad, reach.get((bad.kind, bad.name)), reading)
        if severity:
            yield _finding(bad, severity)


def _worst_last(births: Iterable[JudgedBirth]) -> list[JudgedBirth]:
    return sorted(
        (j for j in births if j.standing == INPUT), key=lambda j: (j.reaches_loss, bool(j.reaches_gradients))
    )


def _severity(bad: BadTensor, judged: JudgedBirth | None, reading: Reading) -> Severity | None:
    if bad.kind == "parameter" or (
        judged is not None and judged is reading.basis and reading.verdict == "bad-input"
    ):
        return "error"
    if not bad.nan:
        return None
    if judged is not None and judged.reaches_loss:
        return "error"
    return "warning" if judged is not None and judged.reaches_gradients else "info"


def _finding(bad: BadTensor, severity: Severity) -> Finding:
    label = f"batch{bad.name}" if bad.kind == "batch" else f"{bad.kind} {bad.name}"
    counts = [count_words(n, what, what) for n, what in ((bad.nan, "NaN"), (bad.inf, "inf")) if n]
    where = f", first at {element(bad.index)}"
    samples = sample_words(bad.samples)
    in_batch = f" of batch {bad.batch}" if bad.batch else ""
    held = f" in {samples}{in_batch}" if samples else in_batch
    module, _, _ = bad.name.rpartition(".") if bad.kind != "batch" else ("", "", "")
    return Finding(
        code=CODE,
        severity=severity,
        title=TITLE,
        module=module,
        op="",
        source=None,
        message=f"{label} holds {' and '.join(counts)}{held}{where}, before anything ran.",
        evidence={
            "tensor": bad.name,
            "kind": bad.kind,
            "batch": bad.batch,
            "dtype": bad.dtype,
            "shape": list(bad.shape),
            "nan": bad.nan,
            "inf": bad.inf,
            "index": list(bad.index),
            "samples": list(bad.samples) if bad.samples else None,
        },
        amounts=Amounts(f"{bad.nan:,} NaN, {bad.inf:,} inf"),
        tensor=bad.name,
        remedy=_REMEDIES[bad.kind].format(samples=samples or "what holds it"),
    )


CODE, TITLE = "AMP105", "non-finite before anything ran"
RULE = Rule(CODE, TITLE, "error", __doc__ or "", check)
