"""What is judged, and how: the sections rules, limits and gate."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from ampdoctor.config.values import FailOn, FilePath, Number, RuleCode, Section


def _no_number(value: object) -> object:
    if isinstance(value, (int, float)):
        raise ValueError(f"expected a date like 2027-01-31, got {value}")
    return value


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
