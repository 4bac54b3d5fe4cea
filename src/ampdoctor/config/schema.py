"""The config contract, version 1: every key, its type, its default and what it means."""

from __future__ import annotations

import datetime
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    model_validator,
)

from ampdoctor.facts.words import Mode

SEVERITIES = ("error", "warning", "info")


_LONGEST_NAME = 255
"""Bytes of one name, on every common file system."""


def _check_path(value: str) -> str:
    try:
        name = os.fsencode(value)
    except UnicodeEncodeError:
        name = b"\0"  # half a character, which YAML can spell
    if b"\0" in name or max(len(part) for part in name.split(b"/")) > _LONGEST_NAME:
        raise ValueError("no file can have this name")
    return value


def _check_target(value: str) -> str:
    _check_path(value.rpartition(":")[0])
    place, colon, name = value.rpartition(":")
    if not colon or not place.strip() or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"'{value}' is no target; write file.py:name or package.module:name")
    return value


def _check_code(value: str) -> str:
    if not re.fullmatch(r"AMP\d{0,3}", value):
        raise ValueError(f"'{value}' is no rule code; write AMP101, or AMP1 for all that start so")
    return value


def _check_fail_on(value: str) -> str:
    if value in SEVERITIES or re.fullmatch(r"AMP\d{0,3}", value):
        return value
    raise ValueError(f"'{value}' is neither a severity ({', '.join(SEVERITIES)}) nor a rule code (AMP101)")


def _check_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", value):
        hint = "; did you mean 'cuda'?" if value.lower().startswith(("gpu", "cuda")) else ""
        raise ValueError(f"'{value}' is not allowed{hint} (allowed: auto, cpu, cuda, cuda:1)")
    return value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


def _no_number(value: object) -> object:
    if isinstance(value, (int, float)):
        raise ValueError(f"expected a date like 2027-01-31, got {value}")
    return value


# the patterns are for editors; the validators know Python's identifiers, and say what is wrong
_WORD = r"[^\s:.\d][^\s:.]*"
Target = Annotated[
    str,
    AfterValidator(_check_target),
    WithJsonSchema({"type": "string", "pattern": rf"\S.*:{_WORD}(\.{_WORD})*$"}),
]
FilePath = Annotated[str, AfterValidator(_check_path)]
RuleCode = Annotated[
    str, AfterValidator(_check_code), WithJsonSchema({"type": "string", "pattern": r"^AMP\d{0,3}$"})
]
FailOn = Annotated[
    str,
    AfterValidator(_check_fail_on),
    WithJsonSchema({"anyOf": [{"enum": [*SEVERITIES]}, {"type": "string", "pattern": r"^AMP\d{0,3}$"}]}),
]
Device = Annotated[
    str,
    AfterValidator(_check_device),
    WithJsonSchema(
        {"anyOf": [{"enum": ["auto", "cpu", "cuda"]}, {"type": "string", "pattern": r"^cuda:\d{1,2}$"}]}
    ),
]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
WholeNumber = Annotated[int, BeforeValidator(_no_bool)]


class Section(BaseModel):
    """One mapping of the config. A key without a value (``loss:``) counts as left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, value: object) -> object:
        if isinstance(value, dict):
            return {k: v for k, v in value.items() if v is not None or k not in cls.model_fields}
        return value


class TargetSection(Section):
    """An object of the user's code, called with ``kwargs`` where it is callable."""

    target: Target
    """``file.py:name`` or ``package.module:name``; a file is relative to the config's folder."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the call."""


class ModelSection(TargetSection):
    """The model: a function that builds it, an nn.Module class, or an nn.Module."""

    checkpoint: FilePath | None = None
    """Weights to load into it: .safetensors, .pt, .pth, .bin or .ckpt; relative to the config's folder."""


class _Batches(Section):
    batches: WholeNumber = Field(default=1, ge=1)
    """How many batches to take, from the first on."""


class DataTarget(TargetSection, _Batches):
    """Batches from the user's code: one batch, or an iterable of batches."""


class DataFile(_Batches):
    """Batches from a file."""

    file: FilePath
    """A .pt, .npz or .safetensors file, relative to the config's folder."""


class SyntheticTensor(Section):
    """A random tensor, uniform in low <= x < high."""

    shape: list[Annotated[WholeNumber, Field(ge=0)]]
    """Sizes, batch first; [] is a single number."""
    dtype: Literal[
        "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
    ] = "float32"
    """The tensor's dtype."""
    low: Number | None = None
    """The smallest value; -1 for floats, 0 for integers where it is left out."""
    high: Number | None = None
    """One past the largest value; 1 for floats where it is left out, integers need it."""

    @model_validator(mode="after")
    def _range_fits_dtype(self) -> SyntheticTensor:
        if self.dtype == "bool":
            if self.low is not None or self.high is not None:
                raise ValueError("low and high make no sense for dtype bool")
            return self
        if "int" in self.dtype:
            if self.high is None:
                raise ValueError(f"high is required for dtype {self.dtype} (one past the largest value)")
            if any(not float(limit).is_integer() for limit in self.range):
                raise ValueError(f"low and high must be whole numbers for dtype {self.dtype}")
            bits, signed = int(self.dtype.split("int")[1]), not self.dtype.startswith("u")
            smallest, largest = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
            if self.range[0] < smallest or self.range[1] > largest:
                raise ValueError(f"low and high must lie in {smallest}..{largest} for dtype {self.dtype}")
        low, high = self.range
        if low >= high:
            raise ValueError(f"low must be less than high, got low {low:g} and high {high:g}")
        return self

    @property
    def range(self) -> tuple[float, float]:
        """(low, high) with the defaults filled in."""
        default = (0.0, math.inf) if "int" in self.dtype else (-1.0, 1.0)
        low = default[0] if self.low is None else self.low
        high = default[1] if self.high is None else self.high
        return low, high


class DataSynthetic(_Batches):
    """Batches of random tensors, drawn from ``seed``."""

    synthetic: Annotated[dict[str, SyntheticTensor], Field(min_length=1)]
    """The batch: a dict of tensors by name."""


class LossTarget(TargetSection):
    """A function of the user's code: (model, batch) -> the scalar loss."""


class LossBuiltin(Section):
    """One of torch's losses, for batches (inputs, target), or dicts that hold the target as labels or y."""

    builtin: Literal[
        "cross_entropy", "nll", "mse", "l1", "smooth_l1", "huber", "bce", "bce_with_logits", "kl_div"
    ]
    """torch's loss of that name, mean over the batch."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for it, such as label_smoothing."""


class OptimizerSection(TargetSection):
    """A function of the user's code: (model) -> torch.optim.Optimizer."""


class PrecisionSection(Section):
    """The run that is examined, and what it is compared with."""

    mode: Mode = "autocast"
    """autocast; half (weights and batch cast to dtype); none (as built)."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """The low-precision dtype."""
    device: Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1."""
    emulate: Literal["cuda", "none"] = "cuda"
    """What a CPU imitates: cuda (its autocast lists, its rounding) or none (the CPU's own autocast)."""
    loss_scale: Annotated[Number, Field(gt=0)] = 65536.0
    """The loss is multiplied by it before backward; GradScaler starts at 65536."""
    reference: Literal["float32"] = "float32"
    """The precision that counts as right."""


class Waiver(Section):
    """A known finding that does not fail the gate."""

    code: RuleCode
    """The rule's code."""
    module: str = "*"
    """A glob over module paths."""
    reason: Annotated[str, Field(min_length=1)]
    """Why it is accepted."""
    expires: Annotated[datetime.date, BeforeValidator(_no_number)] | None = None
    """The last day it holds; left out: for ever."""


class RulesSection(Section):
    """Which rules run. Codes are prefixes: AMP1 is every forward rule."""

    select: list[RuleCode] = Field(default_factory=lambda: ["AMP"])
    """Rules to run."""
    ignore: list[RuleCode] = Field(default_factory=list)
    """Rules to leave out of those."""
    waivers: list[Waiver] = Field(default_factory=list)
    """Known findings that do not fail the gate."""


class LayerLimits(Section):
    """Limits for the modules a glob names; what is left out is as for every module."""

    headroom_bits: Annotated[Number, Field(ge=0)] | None = None
    """Least distance to the largest value, in bits."""
    gradient_underflow: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Largest underflow fraction of gradients, 0 to 1."""
    lost_gradient: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Largest share of a parameter's gradient elements, nonzero in FP32, that are zero here, 0 to 1."""
    drift: Annotated[Number, Field(ge=0)] | None = None
    """Largest relative error of a parameter's gradient against the reference."""
    scale_margin_bits: Annotated[Number, Field(ge=0)] | None = None
    """Bits kept free between the recommended loss scale and the first that overflows."""


class LimitsSection(Section):
    """Where a figure becomes a finding; a limit that is written here fails the gate.

    Any other key is a glob over module paths with limits of its own.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, LayerLimits]

    headroom_bits: Annotated[Number, Field(ge=0)] = 1.0
    """Least distance to the largest value, in bits."""
    gradient_underflow: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Largest underflow fraction of gradients, 0 to 1."""
    lost_gradient: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Largest share of a parameter's gradient elements, nonzero in FP32, that are zero here, 0 to 1."""
    drift: Annotated[Number, Field(ge=0)] | None = None
    """Largest relative error of a parameter's gradient against the reference."""
    scale_margin_bits: Annotated[Number, Field(ge=0)] = 1.0
    """Bits kept free between the recommended loss scale and the first that overflows."""

    @property
    def modules(self) -> dict[str, LayerLimits]:
        """{module glob: its own limits}, in the order of the config."""
        return dict(self.__pydantic_extra__)


class GateSection(Section):
    """What fails a build."""

    fail_on: list[FailOn] = Field(default_factory=lambda: ["error"])
    """Severities (that one or a worse) and rule codes that fail the gate."""
    scale_in_window: bool = False
    """Fail where the configured loss scale lies outside the window of scales that work."""
    baseline: FilePath = "ampdoctor-baseline.json"
    """What is already known, relative to the config's folder."""
    allow_headroom_loss: Annotated[Number, Field(ge=0)] = 0.5
    """Bits of headroom a module may lose against the baseline."""
    allow_underflow_gain: Annotated[Number, Field(ge=0, le=1)] = 0.05
    """What a module's underflow fraction may grow by against the baseline, 0 to 1."""


def _source(*keys: str) -> Discriminator:
    """Tells the members of a union apart by the first of ``keys`` that is there; their tags are ``<key>``."""

    def tag(value: object) -> str | None:
        if isinstance(value, str):
            return f"<{value}>" if value in keys else None
        for key in keys:
            if (isinstance(value, dict) and value.get(key) is not None) or hasattr(value, key):
                return f"<{key}>"
        return None

    return Discriminator(tag)


Data = Annotated[
    Annotated[DataTarget, Tag("<target>")]
    | Annotated[DataFile, Tag("<file>")]
    | Annotated[DataSynthetic, Tag("<synthetic>")],
    _source("target", "file", "synthetic"),
]
Loss = Annotated[
    Annotated[LossTarget, Tag("<target>")]
    | Annotated[LossBuiltin, Tag("<builtin>")]
    | Annotated[Literal["none"], Tag("<none>")],
    _source("target", "builtin", "none"),
]


class Config(Section):
    """Everything ampdoctor is asked to do. Paths are relative to ``directory``."""

    version: Literal[1] = 1
    """The version of this format."""
    model: ModelSection
    """What is examined."""
    data: Data
    """What it is run on: target, file or synthetic."""
    loss: Loss | None = None
    """target, builtin, or none for forward only; left out: output.loss, output["loss"] or a scalar output."""
    optimizer: OptimizerSection | None = None
    """Optional; (model) -> torch.optim.Optimizer."""
    precision: PrecisionSection = Field(default_factory=PrecisionSection)
    """The run that is examined."""
    seed: WholeNumber = Field(default=0, ge=0, lt=2**32)
    """Seeds python, numpy and torch before the model is built, before the data, and before every pass."""
    rules: RulesSection = Field(default_factory=RulesSection)
    """Which rules run."""
    limits: LimitsSection = Field(default_factory=lambda: LimitsSection.model_validate({}))
    """Where a figure becomes a finding."""
    gate: GateSection = Field(default_factory=GateSection)
    """What fails a build."""

    _directory: Path = PrivateAttr(default_factory=Path.cwd)
    _title: str = PrivateAttr(default="")

    @property
    def directory(self) -> Path:
        """The folder that relative paths start from: the config file's, or the current one."""
        return self._directory

    @property
    def title(self) -> str:
        """What to call it in a report: the config's file name, or the model target."""
        return self._title or self.model.target

    @property
    def file(self) -> Path | None:
        """The file it was read from; None for a config made of options."""
        return self._directory / self._title if self._title else None

    def path(self, relative: str) -> Path:
        """The file that a path in the config means."""
        return self._directory / Path(relative).expanduser()

    def located(self, directory: Path, title: str) -> Config:
        """The same config, living in ``directory`` under the name ``title``."""
        config = self.model_copy()
        config._directory, config._title = directory, title
        return config
