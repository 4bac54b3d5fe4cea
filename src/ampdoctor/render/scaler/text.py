"""What a loss scaler did, at 80 columns: the sentence, the curve, the skips, what other rules would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.scaler_report import ScalerReport, SkipGroup
from ampdoctor.diagnose.wording import count_words, listing, place, scale, short_op
from ampdoctor.facts.scaler_policies import Replay
from ampdoctor.facts.trace import Birth
from ampdoctor.render.findings_text import findings_section
from ampdoctor.render.options import Options
from ampdoctor.render.scaler.curve import ASCII, UNICODE, draw
from ampdoctor.render.terminal import as_text
from ampdoctor.render.text import header, labelled
from ampdoctor.render.words import headline_words, source_path, words

_LABEL = 9
"""Columns of a label: ``4,194,304``."""
_MOST_GROUPS = 6
_STYLES = {"settles": "bold green", "steady": "bold green", "rising": "bold green"}


def render(report: ScalerReport, options: Options) -> str:
    """The report as lines of at most ``options.width`` columns, with a newline at its end."""
    return as_text(document(report, options), options)


def document(report: ScalerReport, options: Options) -> RenderableType:
    """The report as something rich can print or export."""
    parts: list[RenderableType] = [header(report.run.environment, options)]
    for section in _sections(report, options):
        parts += [Text(""), section]
    return Padding(Group(*parts), (0, 0, 0, 1))


def _sections(report: ScalerReport, options: Options) -> Iterator[RenderableType]:
    yield headline_words(report.headline, _STYLES.get(report.outcome, "bold red"))
    if report.run.steps:
        yield _curve(report, options)
    if report.skips:
        yield _skips(report.skips, report.run.environment.batches, options)
    if report.findings:
        yield labelled([("Findings", findings_section(report.findings))])
    elif report.remedy:
        yield labelled([("Remedy", words(report.remedy))])
    if report.replays:
        yield _policies(report)
    yield _closing(report)


def _curve(report: ScalerReport, options: Options) -> Text:
    steps, strokes = report.run.steps, UNICODE if options.unicode else ASCII
    curve = draw(steps, options.width - _LABEL - 4, options.unicode)
    bar = "│" if options.unicode else "|"
    legend = f"{strokes.level * 2} loss scale   {strokes.threshold} highest that works"
    text = words(("Loss scale".ljust(_LABEL), "bold"), "   ", (legend, "dim"))
    for label, line in zip(curve.labels, curve.lines, strict=True):
        text.append("\n")
        text.append_text(words((f"{label:>{_LABEL}} ", "dim"), (bar, "dim"), line.rstrip()))
    if curve.skips.strip():
        text.append("\n")
        text.append_text(
            words(("skipped".rjust(_LABEL) + " ", "dim"), (bar, "dim"), (curve.skips.rstrip(), "red"))
        )
    width = len(curve.lines[0])
    ends = f"{curve.first:,}".ljust(width - len(f"{curve.last:,}")) + f"{curve.last:,}"
    if width < 4 or curve.first == curve.last:
        ends = f"{curve.first:,}"
    text.append("\n")
    return text.append_text(words(("step".rjust(_LABEL) + "  " + ends, "dim")))


def _skips(groups: Sequence[SkipGroup], batches: int, options: Options) -> Table:
    rows: list[tuple[str, RenderableType]] = []
    for group in groups[:_MOST_GROUPS]:
        rows.append(("Skipped" if not rows else "", _skip(group, batches, options)))
    if len(groups) > _MOST_GROUPS:
        rest = groups[_MOST_GROUPS:]
        steps = count_words(sum(g.count for g in rest), "step")
        rows.append(("", words(f"and {steps} more in {len(rest):,} places: --format json lists all")))
    return labelled(rows)


def _skip(group: SkipGroup, batches: int, options: Options) -> Text:
    steps = f"step {group.first:,}"
    if group.count > 1:
        steps = f"steps {group.first:,} to {group.last:,}"
        if not group.in_a_row:
            steps = f"{group.count:,} of {steps}"
    if 0 < len(group.batches) < batches:
        noun = "batch" if len(group.batches) == 1 else "batches"
        steps += f", {noun} {listing(group.batches)},"
    scales = scale(group.first_scale)
    if group.count > 1:
        scales += f" .. {scale(group.last_scale)}"
    line = words((steps, "bold"), f" at {scales}: ")
    if group.cause is not None:
        line.append_text(_cause(group.cause, options))
        line.append("\n")
    line.append_text(words(_gradients(group)))
    if group.at_any_scale:
        line.append_text(words("; at any scale, and in FP32 too" if group.in_fp32_too else "; at any scale"))
    return line


def _cause(cause: Birth, options: Options) -> Text:
    value = "NaN" if cause.value == "nan" else "inf"
    if cause.origin in ("batch", "parameter", "buffer"):
        return words(f"{value} in {cause.origin} {cause.name}, before anything ran")
    if cause.site is None:
        return words(f"{value}, declared by the code itself")
    of = f" of {short_op(cause.forward_op)}" if cause.forward_op else ""
    at = f"  {source_path(cause.source, options)}" if cause.source is not None else ""
    cast = " (autocast's cast)" if cause.implicit_cast else ""
    op = f"{short_op(cause.site.op)}{cast}"
    return words(f"{value} from {op} in {place(cause.site.module)}, {cause.site.phase}{of}{at}")


def _gradients(group: SkipGroup) -> str:
    names = group.bad_parameters
    return f"non-finite gradient of {listing(names, 3)}" if names else "non-finite gradients"


def _policies(report: ScalerReport) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    heads = ("starts at", "grows every", "skipped", "ends at")
    table.add_row(Text("Policy", "bold"), *(Text(head, "dim") for head in heads), Text(""))
    for found in report.replays:
        table.add_row(*(words(cell) for cell in _policy(found)))
    return table


def _policy(found: Replay) -> tuple[str, ...]:
    policy, interval = found.policy, found.policy.growth_interval
    note = f"raises at step {len(found.scales) - 1:,}" if found.stopped else ""
    return (
        f" {policy.name}",
        scale(policy.init_scale),
        "-" if interval is None else f"{interval:,} steps",
        f"{len(found.skipped):,}",
        scale(found.final_scale),
        note,
    )


def _closing(report: ScalerReport) -> Group:
    run = report.run
    done = f"{count_words(len(run.steps), 'step')} of {run.optimizer} on a working copy, {run.seconds:.1f} s"
    lines = [words(f"{done}. Weights, buffers and RNG are as they were.")]
    lines += [words(note, style="dim") for note in report.notes]
    return Group(*lines)
