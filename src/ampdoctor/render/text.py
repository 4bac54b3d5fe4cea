"""The report a tired person reads top to bottom: verdict, first fault, run-up, scale, findings, layers."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ampdoctor.diagnose.report import FirstFault, Report
from ampdoctor.diagnose.wording import count_words, format_name, in_mode, place
from ampdoctor.facts.environment import Environment
from ampdoctor.facts.words import AS_BUILT
from ampdoctor.render.fault_text import fault_rows
from ampdoctor.render.findings_text import findings_section, waivers_section
from ampdoctor.render.layer_columns import TERMS
from ampdoctor.render.layers_text import layers_section
from ampdoctor.render.loss_scale_text import loss_scale_section
from ampdoctor.render.ops_text import ops_section
from ampdoctor.render.options import Options
from ampdoctor.render.run_up_columns import cells
from ampdoctor.render.terminal import as_text
from ampdoctor.render.words import apart, headline_words, words

_LABEL_WIDTH = 10
_LABEL_COLUMNS = 12
"""What the margin and the label take of a line."""
_VERDICT_STYLE = {"clean": "bold green", "not-measured": "bold yellow"}


def render(report: Report, options: Options) -> str:
    """The report as lines of at most ``options.width`` columns, with a newline at its end."""
    return as_text(document(report, options), options)


def document(report: Report, options: Options) -> RenderableType:
    """The report as something rich can print or export."""
    parts: list[RenderableType] = [header(report.environment, options), Text(""), _verdict(report)]
    for section in _sections(report, options):
        parts += [Text(""), section]
    parts += [Text(""), _closing(report)]
    return Padding(Group(*parts), (0, 0, 0, 1))


def header(environment: Environment, options: Options) -> Text:
    """What was run, where: one line, or two where it is long."""
    facts = environment_words(environment, options)
    title = words(("ampdoctor", "bold"), "  ", environment.title)
    fits = title.cell_len + 3 + len(facts) < options.width
    return Text("   " if fits else "\n").join((title, words((facts, "dim"))))


def environment_words(environment: Environment, options: Options) -> str:
    """``torch 2.13.0 · cpu, emulating CUDA · float16 autocast · 1 batch``; '' where nothing ran."""
    if not environment.device:
        return ""
    torch = environment.torch_version.partition("+")[0]
    on_gpu = environment.device.startswith("cuda") and environment.device_name
    device = environment.device_name if on_gpu else environment.device
    if environment.emulates:
        device += ", emulating CUDA"
    precision = in_mode(environment.dtype, environment.mode)
    between = " · " if options.unicode else " | "
    return between.join(
        (f"torch {torch}", device, precision, count_words(environment.batches, "batch", "batches"))
    )


def _verdict(report: Report) -> Text:
    return headline_words(report.headline, _VERDICT_STYLE.get(report.verdict, "bold red"))


def _sections(report: Report, options: Options) -> Iterator[RenderableType]:
    if report.first_fault is not None:
        yield labelled(fault_lines(report.first_fault, options))
    if len(report.run_up) > 1:
        yield labelled([("Run-up", _run_up(report, options))])
    if report.losses:
        yield labelled([("Loss", words("   ".join(loss_parts(report))))])
    if not report.environment.forward_only:
        yield labelled([("Loss scale", loss_scale_section(report))])
    if report.findings:
        yield labelled([("Findings", findings_section(report.findings))])
    if any(waiver.state != "used" for waiver in report.waivers):
        yield labelled([("Waivers", waivers_section(report.waivers))])
    if report.layers:
        yield layers_section(report, options)
    if options.ops and report.ops:
        yield ops_section(report, options)


def fault_lines(fault: FirstFault, options: Options) -> list[tuple[str, RenderableType]]:
    """The rows about the fault for a terminal."""
    room = options.width - _LABEL_COLUMNS
    return [(label, apart(*parts, room=room)) for label, parts in fault_rows(fault, options)]


def labelled(rows: list[tuple[str, RenderableType]]) -> Table:
    """Two columns: a label, and what it says, wrapped under itself."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL_WIDTH, no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for label, body in rows:
        grid.add_row(label, body)
    return grid


def _run_up(report: Report, options: Options) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(overflow="fold")
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    for row in report.run_up:
        style = "red" if row.here else ""
        line = (place(row.module), *cells(row), "<- here" if row.here else "")
        grid.add_row(*(words(cell, style=style) for cell in line))
    return grid


def loss_parts(report: Report) -> tuple[str, ...]:
    """The first batch's, or the fault's, in both precisions: what a training loop would have printed."""
    wanted = report.first_fault.batch if report.first_fault else report.losses[0].batch
    row = next((row for row in report.losses if row.batch == wanted), report.losses[0])
    environment = report.environment
    name = "as built" if environment.mode in AS_BUILT else format_name(environment.dtype)
    of = (f"(batch {row.batch})",) if len(report.losses) > 1 else ()
    return f"{name} {_digits(row.candidate)}", f"FP32 {_digits(row.reference)}", *of


def _digits(loss: float | None) -> str:
    """A loss with enough digits to see what rounding did to it."""
    return "none" if loss is None else f"{loss:.5g}"


def _closing(report: Report) -> Group:
    stopped = " Interrupted: this is what was seen until then." if report.interrupted else ""
    lines = [
        words(
            f"{count_words(report.passes, 'pass', 'passes')}, {report.seconds:.1f} s. "
            f"Weights, buffers and RNG are as they were.{stopped}"
        )
    ]
    if report.not_seen:
        lines.append(words("Not seen: " + "; ".join(report.not_seen) + ".", style="dim"))
    if report.layers:
        lines.append(words(TERMS, style="dim"))
    return Group(*lines)
