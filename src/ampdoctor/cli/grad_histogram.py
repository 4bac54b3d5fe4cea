"""``ampdoctor grad-histogram``: where the gradients lie in a format's range, at one loss scale or at all."""

from __future__ import annotations

import difflib
import importlib.util
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampdoctor.cli.clock import today
from ampdoctor.cli.exits import FAILED, Stop
from ampdoctor.cli.output import check_format, check_writable, drawing, write_document, write_file
from ampdoctor.cli.report import read_saved
from ampdoctor.cli.shared_options import (
    ConfigFile,
    DataTarget,
    Debug,
    LossTarget,
    ModelTarget,
    Overrides,
    Quiet,
)
from ampdoctor.cli.workloads import (
    Backward,
    Recording,
    Script,
    ScriptFile,
    ScriptModule,
    StepNumber,
    Targets,
    config_of,
    run_probe,
    source_of,
)
from ampdoctor.errors import ConfigError, ProbeError
from ampdoctor.facts.floats import FLOAT_FORMATS, FloatFormat
from ampdoctor.facts.scale_names import scale_named
from ampdoctor.facts.trace import Trace
from ampdoctor.scales.gradient_view import view_gradients
from ampdoctor.scales.powers_of_two import counted
from ampdoctor.scales.reading import read_scales
from ampdoctor.scales.recordings import gradients_of, passes_shown
from ampdoctor.scales.selection import ACTIVATIONS, EVERYTHING, PARAMETERS, Selection

if TYPE_CHECKING:
    from ampdoctor.config import Config
    from ampdoctor.diagnose.policy import Policy
    from ampdoctor.diagnose.report import Report
    from ampdoctor.render.gradients import Page

DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_LARGEST_SCALE = 64
"""Exponent of the largest scale that --scale takes, and of its inverse: far past any that is of use."""


def grad_histogram(
    context: typer.Context,
    config: ConfigFile = None,
    model: ModelTarget = None,
    data: DataTarget = None,
    loss: LossTarget = None,
    set_: Overrides = None,
    script: ScriptFile = None,
    module: ScriptModule = None,
    step: StepNumber = None,
    backward: Backward = None,
    trace: Annotated[
        Path | None, typer.Option(help="Read a trace that `ampdoctor scan --save` wrote; run nothing.")
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only these modules and what is in them; can be repeated."),
    ] = None,
    activations: Annotated[bool, typer.Option("--activations", help="Only gradients on their way.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Only gradients of parameters.")] = False,
    top: Annotated[int, typer.Option(help="How many of the worst layers to show.", min=0)] = 8,
    scale: Annotated[
        str | None,
        typer.Option(help="Loss scale to show, 1024 or 2^10.", show_default="the configured one"),
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Every loss scale from 2^0 to 2^32.")] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help=f"Show them against: {', '.join(DTYPES)}.", show_default="what they are rounded to"
        ),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, json or csv.")] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw a picture too. Needs matplotlib.")] = None,
    svg: Annotated[Path | None, typer.Option(help="The same, as SVG.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show where gradients lie in FP16's range, and what a loss scale does to them.

    Runs what `ampdoctor scan` runs, and draws the exponents of the gradients before they are rounded.
    """
    from ampdoctor.render import GRADIENTS

    check_format(format_, GRADIENTS)
    fmt = _format_of(dtype)
    wanted = None if scale is None else parse_scale(scale)
    selection = Selection(_kind(activations, parameters), tuple(layer or ()))
    for path, option in ((output, "--output"), (png, "--png"), (svg, "--svg")):
        check_writable(path, option)
    _check_matplotlib("--png" if png else "--svg" if svg else "")
    targets = Targets(model, data, loss)
    named = Script.named(script, module, context, step, backward)
    if trace is not None and named is not None:
        raise ConfigError(f"--trace runs nothing: {named.option} has no use next to it")
    settings: Config | None
    if trace is None:
        seen, settings = run_probe(_with_loss(source_of(config, targets, set_ or [], named)), quiet)
    else:
        settings = _settings(config, targets, set_ or [])
        seen = read_saved(trace)
    source = _arguments(config, trace, targets, set_ or [], named)
    rest = "" if named is None else named.rest

    from ampdoctor.diagnose.engine import diagnose

    policy = _policy(settings)
    report = diagnose(seen, policy)
    if wanted is None:
        wanted = seen.loss_scale
    reading = read_scales(seen, policy.gradient_underflow, policy.scale_margin_bits, selection, fmt)
    if reading is None:
        raise _nothing_to_show(seen, report, selection, _scan_command(source, trace, rest))

    from ampdoctor.render.gradients import Page

    page = Page(
        view=view_gradients(seen, reading, round(math.log2(wanted))),
        report=report,
        wanted=wanted,
        sweep=sweep,
        top=top,
        underflow_limit=policy.gradient_underflow,
        margin_bits=policy.scale_margin_bits,
        again=" ".join(["ampdoctor grad-histogram", *source, *_view_arguments(selection, dtype)]),
        scan=_scan_command(source, trace, rest),
        rest=rest,
        types={m.path: m.type for m in seen.modules},
    )
    write_document(GRADIENTS[format_](page, drawing(output)), output)
    _draw(page, png, svg)
    if seen.interrupted:
        raise Stop("interrupted: what is shown was measured until then", FAILED)


def parse_scale(text: str) -> float:
    """The loss scale that ``1024``, ``65,536``, ``1e4`` or ``2^10`` names. Raises ConfigError for others."""
    value = scale_named(text)
    if not 2.0**-_LARGEST_SCALE <= value <= 2.0**_LARGEST_SCALE:
        raise ConfigError(f"--scale {text}: not a loss scale", hint="a number above 0: 1024, 1e4 or 2^10")
    return value


# ---------------------------------------------------------------- what the options say


def _format_of(dtype: str | None) -> FloatFormat | None:
    if dtype is None:
        return None
    if dtype not in DTYPES:
        near = difflib.get_close_matches(dtype, DTYPES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"--dtype {dtype}: no such format", hint=f"{hint}formats: {', '.join(DTYPES)}")
    return FLOAT_FORMATS[dtype]


def _kind(activations: bool, parameters: bool) -> str:
    if activations and parameters:
        raise ConfigError("--activations and --parameters exclude each other", hint="leave both out for all")
    return ACTIVATIONS if activations else PARAMETERS if parameters else EVERYTHING


def _check_matplotlib(option: str) -> None:
    if option and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"{option} needs matplotlib, which is not installed", hint='pip install "ampdoctor[plots]"'
        )


def _settings(config: Path | None, targets: Targets, overrides: list[str]) -> Config | None:
    """The config next to a saved trace, for its limits; None where there is none."""
    if targets.options:
        raise ConfigError("--trace runs nothing: --model, --data and --loss have no use next to it")
    if config is None and overrides:
        raise ConfigError("--set has no use next to --trace", hint="name a config to take its limits")
    if config is None:
        return None
    return config_of(config, Targets(), overrides)


def _with_loss(source: Config | Script | Recording) -> Config | Script | Recording:
    if not isinstance(source, (Script, Recording)) and source.loss == "none":
        raise ConfigError("loss: none leaves no gradients", hint="name a loss: {target: file.py:name}")
    return source


def _policy(settings: Config | None) -> Policy:
    if settings is None:
        from ampdoctor.diagnose.engine import DEFAULT_POLICY

        return DEFAULT_POLICY
    from ampdoctor.api.request import policy_of

    return policy_of(settings, today())


# ---------------------------------------------------------------- the same again, on a command line


def _arguments(
    config: Path | None,
    trace: Path | None,
    targets: Targets,
    overrides: Sequence[str],
    script: Script | None,
) -> list[str]:
    """The arguments that name what was examined, but for a script's own: those come last."""
    named = [] if script is None else [script.options]
    named += [] if config is None else [shlex.quote(str(config))]
    named += [] if trace is None else [f"--trace {shlex.quote(str(trace))}"]
    return [*named, *map(shlex.quote, targets.words)] + [
        f"--set {shlex.quote(change)}" for change in overrides
    ]


def _view_arguments(selection: Selection, dtype: str | None) -> list[str]:
    kind = [] if selection.kind == EVERYTHING else [f"--{selection.kind}"]
    layers = [f"--layer {shlex.quote(glob)}" for glob in selection.layers]
    return [*kind, *layers, *([] if dtype is None else [f"--dtype {dtype}"])]


def _scan_command(source: Sequence[str], trace: Path | None, rest: str) -> str:
    """The command that diagnoses the same."""
    if trace is not None:
        return f"ampdoctor report {shlex.quote(str(trace))}"
    return " ".join(["ampdoctor scan", *source]) + rest


# ---------------------------------------------------------------- when there is nothing to draw


def _nothing_to_show(
    trace: Trace, report: Report, selection: Selection, scan: str
) -> ConfigError | ProbeError | Stop:
    """Why no gradient can be shown."""
    if not passes_shown(trace):
        if trace.interrupted:
            return Stop("interrupted: nothing was measured", FAILED)
        why = _no_backward(trace, report)
        return ProbeError(f"no gradient to show: {why}", hint=f"{scan} says where and why")
    everything = counted(gradients_of(trace))
    if not everything:
        return ProbeError(
            "no gradient to show: all of them are FP32 and nothing is rounded on the way",
            hint="precision.mode: autocast or half, with dtype float16 or bfloat16",
        )
    of_kind = [t for t in everything if Selection(selection.kind).holds(t)]
    if not of_kind:
        return ProbeError(f"no gradient to show: none of {selection.kind} is rounded to low precision")
    names = sorted({Selection(selection.kind).name_of(t) for t in of_kind} - {""})
    globs = " or ".join(selection.layers)
    near = [n for glob in selection.layers for n in difflib.get_close_matches(glob, names, n=2)]
    return ConfigError(
        f"--layer {globs}: no gradient is rounded in a module of that name",
        hint=f"did you mean {' or '.join(near)}?" if near else f"some that are: {', '.join(names[:6])}",
    )


def _no_backward(trace: Trace, report: Report) -> str:
    candidates = [p for p in trace.passes if p.role == "candidate"]
    if trace.environment.forward_only:
        return "the scan was forward only"
    if candidates and not any(p.backward_ran or p.raised for p in candidates):
        return "the loss depends on no parameter that requires one"
    return report.sentence


def _draw(page: Page, png: Path | None, svg: Path | None) -> None:
    """The pictures that were asked for, in their files."""
    if png is None and svg is None:
        return
    from ampdoctor.render.gradients.plot import picture

    for path, kind in ((png, "png"), (svg, "svg")):
        if path is not None:
            write_file(picture(page, kind), path)
