"""What ``precision.loss_scale`` may be: a scaler that moves it, or a number that stays."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from ampdoctor.config.values import Number, Section
from ampdoctor.facts.scale_names import scale_named

_FORMS = "write dynamic, {dynamic: 1024}, or a number such as 1024 or 2^10"


def _number_named(value: object) -> object:
    if not isinstance(value, str):
        return value
    named = scale_named(value)
    if math.isnan(named):
        raise ValueError(f"'{value}' is no loss scale; {_FORMS}")
    return named


LARGEST = 2.0**127
"""The largest power of two that FP32 holds, in which a scale is kept."""

ScaleNumber = Annotated[
    Number,
    BeforeValidator(_number_named),
    Field(gt=0, le=LARGEST),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST},
                {"type": "string", "pattern": r"^2(\^|\*\*)[+-]?\d{1,4}$"},
            ]
        }
    ),
]
"""A number above 0 that FP32 holds; powers of two also as ``2^10`` and ``2**10``."""


class DynamicScaler(Section):
    """torch's GradScaler, started at a scale of one's own."""

    dynamic: ScaleNumber
    """The scale that it starts at."""


def _form(value: object) -> str:
    if value == "dynamic":
        return "<dynamic>"
    return "<start>" if isinstance(value, (dict, DynamicScaler)) else "<number>"


LossScale = Annotated[
    Annotated[Literal["dynamic"], Tag("<dynamic>")]
    | Annotated[DynamicScaler, Tag("<start>")]
    | Annotated[ScaleNumber, Tag("<number>")],
    Discriminator(_form),
]
