"""A prescription at 80 columns: the diagnosis, the treatments best first, what was tried and failed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.wording import count_words, percent, place, scale
from ampdoctor.remedy.plan import TreatmentPlan, format_word, plan_words
from ampdoctor.remedy.prescription import Prescription, Treatment
from ampdoctor.render.findings_text import findings_section
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
    for treatment in prescription.treatments:
        if treatment.plan.formats:
            yield _formats(treatment.plan)
    if prescription.incurable:
        yield words((f"{prescription.incurable[0].upper()}{prescription.incurable[1:]}", "bold yellow"))
    if prescription.tried:
        rows: list[tuple[str, RenderableType]] = [
            ("" if n else "Tried", words((attempt.what, "bold"), f": {attempt.why}"))
            for n, attempt in enumerate(prescription.tried)
        ]
        yield labelled(rows)
    if prescription.findings:
        yield findings_section(prescription.findings)
    if prescription.not_run:
        yield labelled([("" if n else "Not run", words(w)) for n, w in enumerate(prescription.not_run)])
    search = count_words(prescription.runs, "pass", "passes")
    proof = ""
    if any(not t.plan.formats for t in prescription.treatments):
        proof += " Each treatment was then scanned whole, on every batch."
    if any(t.plan.formats for t in prescription.treatments):
        proof += " The table of formats was run on every batch, rounding in FP32."
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
            words(plan_words(treatment.plan, bool(treatment.minimal))),
            flops,
            f"{proof.batches} of {proof.batches}",
            error,
            window,
        )
    table.expand = True
    return table


def _formats(plan: TreatmentPlan) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(Text("Format", "bold"), Text("forward", "dim"), Text("gradient", "dim"))
    for item in plan.formats:
        table.add_row(words(place(item.path)), format_word(item.forward), format_word(item.gradient))
    return table
