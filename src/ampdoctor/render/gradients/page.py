"""Everything a drawing of gradients is made from, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ampdoctor.diagnose.report import Report
from ampdoctor.scales.gradient_view import GradientView, Selection
from ampdoctor.scales.powers_of_two import HIGHEST, LOWEST, ScalePoint, predicted_window, recommended_in


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
    def is_as_run(self) -> bool:
        """All gradients in the format they were rounded to: what the scan proved holds for them."""
        everything = self.view.selection == Selection() and bool(self.view.runs)
        return everything and self.report.loss_scale.searched

    @property
    def whole_window(self) -> tuple[int, int] | None:
        """The window of all gradients as they ran; None where there is none, or another format is shown."""
        window = self.report.loss_scale.window if self.view.is_recorded_format else None
        return None if window is None else (exponent_of_power(window[0]), exponent_of_power(window[1]))

    @property
    def is_spoiled(self) -> bool:
        """The forward pass has a fault, and these gradients follow from it."""
        return self.report.verdict.startswith("forward-") or self.report.verdict == "bad-input"

    @property
    def window(self) -> tuple[int, int] | None:
        """Exponents of the lowest and the highest scale that work; None where none does."""
        if not self.is_as_run:
            return predicted_window(self.view.tensors, self.underflow_limit, self.margin_bits, self.view.fmt)
        return self.whole_window

    @property
    def recommended(self) -> int | None:
        """Exponent of the scale to use; None where none works."""
        if self.is_as_run:
            scale = self.report.loss_scale.recommended
            return None if scale is None else exponent_of_power(scale)
        window = self.window
        return None if window is None else recommended_in(*window)

    @property
    def works(self) -> bool:
        """The scale shown lies in the window."""
        window = self.window
        return window is not None and window[0] <= self.view.exponent <= window[1]

    def point(self, exponent: int) -> ScalePoint | None:
        """The sweep at 2^exponent; None outside 2^0 .. 2^32."""
        return self.view.points[exponent - LOWEST] if LOWEST <= exponent <= HIGHEST else None


def exponent_of_power(scale: float) -> int:
    """k for 2^k."""
    return int(scale.hex().partition("p")[2])
