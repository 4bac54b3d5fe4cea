"""What is run: the sections model, data, loss and optimizer."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ampdoctor.config.values import FilePath, Number, Section, Target, WholeNumber


class TargetSection(Section):
    """An object of the user's code, called with ``kwargs`` where it is callable."""

    target: Target
    """``file.py:name`` or ``package.module:name``; a file is relative to the config's folder."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the call."""


class ModelSection(TargetSection):
    """The model: a function that builds it, an nn.Module class, or an nn.Module."""

    checkpoint: FilePath | None = None
    """Weights to load into it: .safetensors, .pt, .pth, .bin or .ckpt, an .index.json of shards, a folder of
    transformers or torch.distributed.checkpoint; relative to the config's folder."""
    mode: Literal["train", "eval"] | None = None
    """Set on the whole model before it is scanned; left out: as it was built."""


class _Batches(Section):
    batches: WholeNumber = Field(default=1, ge=1, le=1_000_000)
    """How many batches to take, from the first on."""


class DataTarget(TargetSection, _Batches):
    """Batches from the user's code: one batch, or an iterable of batches."""


class DataFile(_Batches):
    """Batches from a file."""

    file: FilePath
    """A .pt, .npz or .safetensors file, relative to the config's folder."""


_MOST_ELEMENTS = 2**44
"""Of a random tensor. Torch counts bytes in 63 bits; below this it says by itself that memory ran out."""


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
    def _fits_a_machine(self) -> SyntheticTensor:
        if math.prod(self.shape) > _MOST_ELEMENTS:
            raise ValueError("shape asks for more elements than any machine holds")
        return self

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

    steps: WholeNumber = Field(default=25, ge=1, le=10_000)
    """Steps that `scan` takes on a copy, over the batches in turn, to see what rounding leaves of them."""


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


DATA_SOURCES = ("target", "file", "synthetic")
LOSS_SOURCES = ("target", "builtin", "none")
"""The keys of which one says where data and loss come from."""

Data = Annotated[
    Annotated[DataTarget, Tag("<target>")]
    | Annotated[DataFile, Tag("<file>")]
    | Annotated[DataSynthetic, Tag("<synthetic>")],
    _source(*DATA_SOURCES),
]
Loss = Annotated[
    Annotated[LossTarget, Tag("<target>")]
    | Annotated[LossBuiltin, Tag("<builtin>")]
    | Annotated[Literal["none"], Tag("<none>")],
    _source(*LOSS_SOURCES),
]
