"""A prescription at 80 columns: the diagnosis, the treatments best first, what was tried and failed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.wording import count_words, listing, percent, place, scale
from ampdoctor.remedy.plan import TreatmentPlan
from ampdoctor.remedy.plan import change_words as change_words_of_line
from ampdoctor.remedy.prescription import Prescription, Treatment
from ampdoctor.render.options import Options
from ampdoctor.render.terminal import as_text
from ampdoctor.render.text import header, labelled
from ampdoctor.render.words import words


def render(prescription: Prescription, options: Options) -> str:
    """The prescription as lines of at most ``options.width`` columns, with a newline at its end."""
    parts: list[RenderableType] = [header(prescription.environment, options)]
    for section in _sections(prescription):
        parts += [Text(""), section]
    return as_text(Padding(Group(*parts), (0, 0, 0, 1)), options)


def _sections(prescription: Prescription) -> Iterator[RenderableType]:
    healthy = prescription.verdict == "clean"
    yield words((prescription.diagnosis, "bold green" if healthy else "bold red"))
    if healthy:
        yield words("There is nothing to cure.")
    if prescription.treatments:
        yield _treatments(prescription.treatments)
    if prescription.incurable:
        yield words((f"{prescription.incurable[0].upper()}{prescription.incurable[1:]}", "bold yellow"))
    if prescription.tried:
        rows: list[tuple[str, RenderableType]] = [
            ("" if n else "Tried", words((attempt.what, "bold"), f": {attempt.why}"))
            for n, attempt in enumerate(prescription.tried)
        ]
        yield labelled(rows)
    if prescription.not_run:
        yield labelled([("" if n else "Not run", words(w)) for n, w in enumerate(prescription.not_run)])
    search = count_words(prescription.runs, "pass", "passes")
    proof = " Each treatment was then scanned whole, on every batch." if prescription.treatments else ""
    yield words((f"{search} for the search.{proof}", "dim"))


def _treatments(treatments: tuple[Treatment, ...]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(ratio=1)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    heads = ("FLOPs FP32", "finite on", "grad error", "loss scales")
    table.add_row(Text("Treatment", "bold"), *(Text(head, "dim") for head in heads))
    for treatment in treatments:
        proof = treatment.proof
        flops = "-" if treatment.cost.flops is None else percent(treatment.cost.flops)
        error = "-" if proof.gradient_error is None else percent(proof.gradient_error)
        window = "-" if proof.window is None else f"{scale(proof.window[0])} .. {scale(proof.window[1])}"
        table.add_row(
            words(change_words(treatment)), flops, f"{proof.batches} of {proof.batches}", error, window
        )
    table.expand = True
    return table


def change_words(treatment: Treatment) -> str:
    """What the treatment changes: ``blocks.1.ff.wo in FP32``."""
    plan = treatment.plan
    parts = []
    if plan.dtype is not None:
        parts.append("BF16 for all" if plan.dtype == "bfloat16" else f"{plan.dtype} for all")
    elif plan.fp32 or plan.loss_fp32:
        parts.append(_in_fp32(plan, treatment.minimal))
    parts += [
        f"{place(path)} at {scale(factor)} times the loss scale" for path, factor in plan.scales.items()
    ]
    parts += [change_words_of_line(change) for change in plan.lines]
    if plan.loss_scale is not None and plan.dtype is None:
        parts.append(f"loss scale {scale(plan.loss_scale)}")
    return ", ".join(parts)


def _in_fp32(plan: TreatmentPlan, minimal: bool | None) -> str:
    modules = ["the whole model" if path == "" else place(path) for path in plan.fp32]
    what = listing([*modules, *(["the loss"] if plan.loss_fp32 else [])])
    after = " (outputs cast back)" if plan.fp32 and plan.output == "cast" else ""
    none_less = "; none of them can be left out" if minimal and len(plan.fp32) > 1 else ""
    around = "; autocast around each call of the model only" if plan.loss_fp32 else ""
    return f"{what} in FP32{after}{none_less}{around}"
