"""Everything a drawing of gradients is made from, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampdoctor.diagnose.report import Report
from ampdoctor.scales.gradient_view import GradientView
from ampdoctor.scales.reading import ScaleReading, Window


@dataclass(frozen=True)
class Page:
    """Gradients at one loss scale, next to what a scan says about loss scales."""

    view: GradientView
    report: Report
    wanted: float
    """The loss scale that was asked for; the view has the nearest power of two."""
    sweep: bool
    """Every scale is shown, not this one alone."""
    top: int
    """How many layers to show."""
    underflow_limit: float
    """Share of elements from which on a scale is too low."""
    margin_bits: float
    again: str
    """The command that shows the same gradients; options for another scale or format go behind it."""
    scan: str
    """The command that diagnoses the same model."""
    types: Mapping[str, str]
    """Module path -> class."""
    rest: str = ""
    """What comes behind those options: `` -- `` and a script's own arguments."""

    @property
    def reading(self) -> ScaleReading:
        """What is known of every loss scale, for the gradients shown and in the format shown."""
        return self.view.reading

    @property
    def works(self) -> bool:
        """The scale shown lies in the window."""
        return self.reading.works(self.view.exponent)

    @property
    def window_of_all(self) -> Window | None:
        """The window of all gradients as they ran; None where there is none, or another format is shown."""
        window = self.report.loss_scale.window if self.view.is_recorded_format else None
        return None if window is None else Window(exponent_of_power(window[0]), exponent_of_power(window[1]))

    @property
    def is_spoiled(self) -> bool:
        """The forward pass has a fault, and these gradients follow from it."""
        return self.report.verdict.startswith("forward-") or self.report.verdict == "bad-input"


def exponent_of_power(scale: float) -> int:
    """k for 2^k."""
    return int(scale.hex().partition("p")[2])
