"""A bundle: one step of a run, recorded so that it can be run again elsewhere. Its tensors lie beside it.

What calls took is in ``Call.args``: JSON values, and for what JSON has none of a mapping with one key, which
says what it is (``{"tuple": [...]}``, ``{"made": [3, 0]}``); ``load.script.tape_calls`` does both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampdoctor.facts.loop import Moment
from ampdoctor.facts.site import Source
from ampdoctor.facts.words import RecordedFor

WEIGHTS, BATCH, RANDOM, OPTIMIZER = GROUPS = ("weights", "batch", "random", "optimizer")
"""What the tensors of a bundle are for; a file for each that has any."""


@dataclass(frozen=True)
class Call:
    """One call that led to the loss: of a root module, or of a torch function."""

    function: str
    """As ``torch.overrides.resolve_name`` has it; '' for a root."""
    root: str | None
    """The root module's path in the model ('' for the model itself); None for a function."""
    args: Any
    kwargs: Any
    line: Source | None
    autocast: Mapping[str, str]
    """Device type -> dtype, where autocast was on."""
    grad: bool
    in_place: bool
    random: tuple[str, ...] = ()
    """Devices whose generator's state before it is kept, as ``<number of the call>.<device>``."""


@dataclass(frozen=True)
class Root:
    """A module that the script called."""

    path: str
    type: str
    """``train.Net``."""
    build: Any = None
    """How it is made without the user's code; None: it cannot be."""


@dataclass(frozen=True)
class OptimizerFacts:
    """The optimizer whose turn it was."""

    type: str
    """``torch.optim.AdamW``."""
    groups: Any
    """A list of its groups: their values, and under ``params`` the names of their parameters."""
    state: Any
    """{parameter's name: {key: value}}; a tensor is under ``<parameter>|<key>``."""


@dataclass(frozen=True)
class TensorFile:
    """A file of tensors."""

    group: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Bundle:
    """One recorded step."""

    script: str
    step: int
    why: RecordedFor
    line: int
    """Of the backward; 0 where that is not known."""
    loss: float | None
    gradient_norm: float | None
    """2-norm over the optimizer's parameters, unscaled."""
    median_loss: float | None
    """Of the steps before it; None for too few."""
    skips: int
    """Steps in a row that a scaler had skipped, with this one."""
    tool_version: str
    torch_version: str
    python_version: str
    device: str
    """Where its weights were: ``cpu``, ``cuda:0``."""
    device_name: str
    packages: Mapping[str, str]
    """Versions of the libraries that computed with it."""
    dtypes: tuple[str, ...]
    """Of the autocast in it."""
    weight_dtypes: tuple[str, ...]
    """Of its floating weights and buffers."""
    loss_scale: float | None
    """Of the scaler, at this step; None without one."""
    scaler: Mapping[str, float | int | None]
    """The scaler's state dict; empty without one."""
    optimizer: OptimizerFacts | None
    roots: tuple[Root, ...]
    ties: Mapping[str, str]
    """Name of a parameter or buffer -> the name under which the same tensor is kept."""
    frozen: tuple[str, ...]
    """Parameters that required no gradient."""
    evaluating: tuple[str, ...]
    """Paths of modules in evaluation."""
    calls: tuple[Call, ...]
    end: tuple[int, int]
    """Where the loss is: the number of its call, and its place among the tensors that this made."""
    differentiated: tuple[int, ...]
    """Places in the batch whose tensors required a gradient."""
    timeline: tuple[Moment, ...] = ()
    """The last steps, this one last."""
    files: tuple[TensorFile, ...] = field(default=())
