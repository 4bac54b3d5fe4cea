"""``ampdoctor init``: a config with every key explained, checked by loading it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampdoctor.cli.output import write_file
from ampdoctor.errors import AmpDoctorError, ConfigError

if TYPE_CHECKING:
    from ampdoctor.config import Config

TEMPLATE = """\
# What ampdoctor examines, and how. Paths start at this file's folder; FILE.py:NAME is an object of your code.
# Keys behind a # show their defaults or an example.
version: 1

model:
  target: {model}  # a function that builds the model, its class, or the model itself
  # kwargs: {{}}  # keyword arguments for it
  # checkpoint: weights.safetensors  # weights to load: .safetensors, .pt, .pth, .bin or .ckpt

data:
{data}
  # batches: 1  # how many to take, from the first on

{loss}

# optimizer: {{target: FILE.py:build_optimizer, steps: 25}}  # (model) -> torch.optim.Optimizer; steps to take

precision:
  # mode: autocast  # autocast | half (weights and batch in dtype) | none (as built)
  # dtype: float16  # float16 | bfloat16
  # device: auto  # auto | cpu | cuda | cuda:1
  # emulate: cuda  # what a CPU imitates: cuda (its autocast lists and rounding) | none (its own)
  loss_scale: dynamic  # dynamic: GradScaler from 65536, in bfloat16 none | {{dynamic: 1024}} | 1024: fixed
  # reference: float32  # the precision that counts as right

seed: 0  # for python, numpy and torch, before the model, the data and every pass

# rules: {{select: [AMP], ignore: [], waivers: []}}  # codes or their beginnings; `ampdoctor explain AMP101`
#   a waiver: {{code: AMP103, module: "decoder.*", reason: why it is fine, expires: 2027-01-31}}
# limits: {{headroom_bits: 1.0, gradient_underflow: 0.01, scale_margin_bits: 1}}  # what is still fine
#   for the gate besides, of any one parameter's gradient: lost_gradient: 0.2, drift: 0.1
#   for some modules only: "decoder.*": {{headroom_bits: 2}}
# gate: {{fail_on: [error], scale_in_window: false, baseline: ampdoctor-baseline.json}}  # for CI
#   what a layer may lose against the baseline: allow_headroom_loss: 0.5, allow_underflow_gain: 0.05
"""

DATA_TARGET = """\
  target: {data}  # a function that returns a batch or an iterable of batches, or the value itself
  # kwargs: {{}}  # keyword arguments for it
  #   instead of a target, a file of tensors: {{file: batch.pt}} (.pt, .npz or .safetensors)
  #   or random tensors: {{synthetic: {{x: {{shape: [8, 3, 32, 32], dtype: float32, low: -1, high: 1}}}}}}"""

DATA_FILE = """\
  file: {data}  # a .pt, .npz or .safetensors file
  #   instead of a file, your code: {{target: FILE.py:build_batch}}
  #   or random tensors: {{synthetic: {{x: {{shape: [8, 3, 32, 32], dtype: float32, low: -1, high: 1}}}}}}"""

NO_LOSS = """\
# loss: {target: FILE.py:compute_loss}  # (model, batch) -> one number
#   left out: the model's own output.loss, output["loss"] or scalar output
#   or {builtin: cross_entropy}, or none for a forward pass only"""


def init(
    model: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="The model, or a function that builds it.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="A batch, or a file of tensors.")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="(model, batch) -> loss, or a built-in's name, or none."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The config to write.")] = Path(
        "ampdoctor.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config.")] = False,
) -> None:
    """Write a config with every key explained, and check that it loads."""
    from ampdoctor.config import config_from_options, load_config

    _check_output(output, force)
    if sys.stdin.isatty():
        asked_model = model is None
        model = model or typer.prompt("Model (FILE.py:NAME)", err=True)
        data = data or typer.prompt("Data (FILE.py:NAME, or a file of tensors)", err=True)
        if asked_model and loss is None:
            question = "Loss (FILE.py:NAME, cross_entropy, mse, ..., none; empty: the model returns it)"
            loss = typer.prompt(question, default="", show_default=False, err=True) or None
    text = config_text(config_from_options(model, data, loss), output.parent)
    write_file(text.encode(), output)
    summary = _checked(load_config(output), output)
    typer.echo(f"{output} is written. It loads: {summary}.")
    typer.echo(f"Next: ampdoctor scan {output}")


def config_text(config: Config, folder: Path) -> str:
    """The commented config, with paths as they are seen from ``folder``."""
    from ampdoctor.config.workload import DataFile, DataTarget, LossBuiltin, LossTarget

    if isinstance(config.data, DataFile):
        data = DATA_FILE.format(data=_scalar(_seen_from(folder, config.data.file)))
    else:
        assert isinstance(config.data, DataTarget)  # --data makes no other.
        data = DATA_TARGET.format(data=_scalar(_target(config.data.target, folder)))
    loss = NO_LOSS
    if isinstance(config.loss, LossTarget):
        loss = (
            f"loss:\n  target: {_scalar(_target(config.loss.target, folder))}  # (model, batch) -> one number"
        )
        loss += "\n  # kwargs: {}  # keyword arguments for it"
    elif isinstance(config.loss, LossBuiltin):
        loss = (
            f"loss:\n  builtin: {config.loss.builtin}  # for batches (inputs, target), or named labels or y"
        )
        loss += "\n  # kwargs: {}  # keyword arguments for it"
    elif config.loss == "none":
        loss = "loss: none  # a forward pass only"
    return TEMPLATE.format(model=_scalar(_target(config.model.target, folder)), data=data, loss=loss)


def _check_output(output: Path, force: bool) -> None:
    if output.is_dir():
        raise ConfigError(f"--output {output}: is a folder", "Name a file in it.")
    if output.exists() and not force:
        raise ConfigError(f"{output} is there already", "--force overwrites it; --output names another.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.absolute().parent}")


def _checked(config: Config, output: Path) -> str:
    """What the config loads, in words; a failure says that the file stays."""
    from ampdoctor.load import load

    try:
        workload = load(config)
    except AmpDoctorError as error:
        stays = f"{output} is written and stays: correct it, then run: ampdoctor scan {output}"
        hint = f"{error.hint}\n{stays}" if error.hint else stays
        raise type(error)(error.message, hint, user_traceback=error.user_traceback) from error
    parameters = sum(parameter.numel() for parameter in workload.model.parameters())
    batches = "1 batch" if len(workload.batches) == 1 else f"{len(workload.batches)} batches"
    return f"{type(workload.model).__name__} with {parameters:,} parameters, {batches}"


def _target(target: str, folder: Path) -> str:
    place, _, name = target.rpartition(":")
    return f"{_seen_from(folder, place)}:{name}" if place.endswith(".py") else target


def _seen_from(folder: Path, file: str) -> str:
    """A path relative to the current folder, made relative to ``folder``."""
    path = Path(file).expanduser()
    return file if path.is_absolute() else Path(os.path.relpath(path, folder)).as_posix()


def _scalar(text: str) -> str:
    """The text as YAML, quoted where it needs to be."""
    import yaml

    dumped: str = yaml.safe_dump(text, width=10_000, allow_unicode=True)
    return dumped.splitlines()[0]
