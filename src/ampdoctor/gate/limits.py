"""Limits of the config against the tables of a report: what breaks one, and what could not be checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ampdoctor.diagnose.gate_result import Check
from ampdoctor.diagnose.report import Report
from ampdoctor.diagnose.wording import percent, scale
from ampdoctor.gate.rules import DRIFT, HEADROOM, LIMIT_NAMES, LOST, UNDERFLOW, GateRules, Limit

SCALE = "scale_in_window"
CODES = {HEADROOM: "AMP103", UNDERFLOW: "AMP203", LOST: "AMP203", DRIFT: "AMP206", SCALE: "AMP205"}
"""The rule whose page explains what a limit is about; a waiver for it covers the limit too."""


@dataclass(frozen=True)
class LimitChecks:
    """What came out of checking every limit."""

    failed: tuple[Check, ...]
    unmeasured: tuple[Check, ...]
    """Limits that were asked for and that nothing could be held against."""


def check_limits(report: Report, rules: GateRules) -> LimitChecks:
    """Every limit of the rules, held against the report."""
    failed: list[Check] = []
    unmeasured: list[Check] = []
    for name in LIMIT_NAMES:
        limits = [limit for limit in rules.limits if limit.name == name]
        for check in _check(name, limits, report):
            (unmeasured if check.measured is None else failed).append(check)
    if rules.scale_in_window:
        for check in _scale(report):
            (unmeasured if check.measured is None else failed).append(check)
    return LimitChecks(tuple(failed), tuple(unmeasured))


@dataclass(frozen=True)
class _Figure:
    """One measured value that limits of one name speak of."""

    module: str
    parameter: str
    """'' for a figure of the module."""
    value: float | None
    """None: not measured here."""
    harmless: bool = False
    """There is nothing here that the limit could be about."""

    def is_meant_by(self, limit: Limit) -> bool:
        """True where the limit's glob names the module, or the parameter."""
        return limit.fits(self.module) or (bool(self.parameter) and limit.fits(self.parameter))


def _check(name: str, limits: Sequence[Limit], report: Report) -> Iterator[Check]:
    if name == UNDERFLOW:  # where it holds everywhere it is about the gradient as a whole
        yield from _whole_underflow([limit for limit in limits if not limit.modules], report)
        limits = [limit for limit in limits if limit.modules]
    figures = list(_figures(name, report)) if limits else []
    for limit in limits:
        spoken_of = [f for f in figures if f.is_meant_by(limit)]
        if not spoken_of and limit.modules:
            yield _unmeasured(limit, f"{limit.key} names nothing that was measured")
        elif all(f.value is None and not f.harmless for f in spoken_of):
            where = " there" if limit.modules else ""
            yield _unmeasured(limit, f"{limit.key}: no {_NOUNS[name]} was measured{where}")
    broken: list[Check] = []
    for figure in figures:
        fitting = [limit for limit in limits if figure.is_meant_by(limit)]
        if fitting and figure.value is not None and _breaks(figure.value, fitting[-1]):
            broken.append(_failed(figure, figure.value, fitting[-1]))
    yield from sorted(broken, key=lambda check: -abs((check.measured or 0.0) - (check.limit or 0.0)))


_NOUNS = {HEADROOM: "headroom", UNDERFLOW: "gradient", LOST: "gradient", DRIFT: "gradient"}


def _figures(name: str, report: Report) -> Iterator[_Figure]:
    """The layers' figures; for what concerns parameters, theirs. Noise around zero is no figure."""
    if name == HEADROOM:
        for row in report.layers:
            # an FP32 layer has no headroom to lose, and of one that overflows a finding speaks
            forward = None if row.born else row.forward
            bits = forward.headroom_bits if forward is not None and not forward.inf else None
            yield _Figure(row.module, "", bits, harmless=bits is None)
    elif name == UNDERFLOW:
        for row in report.layers:
            gradient = row.gradient
            share = gradient.underflow_fraction if gradient else None
            in_fp32 = gradient is not None and share is None and not gradient.nan
            yield _Figure(row.module, "", share, harmless=in_fp32)
    else:
        for parameter in report.parameters:
            value = parameter.lost_fraction if name == LOST else parameter.relative_error
            finite = value if value is not None and math.isfinite(value) else None
            module = parameter.name.rpartition(".")[0]
            yield _Figure(module, parameter.name, None if parameter.noise else finite, parameter.noise)


def _breaks(value: float, limit: Limit) -> bool:
    return value < limit.value if limit.name == HEADROOM else value > limit.value


def _failed(figure: _Figure, value: float, limit: Limit) -> Check:
    of = f" of {figure.parameter}" if figure.parameter else ""
    if limit.name == HEADROOM:
        message = f"{value:.1f} bits of headroom, where {limit.key} asks for {limit.value:g}"
        by = f"{_bits(limit.value - value)} short"
    elif limit.name == DRIFT:
        message = f"The gradient{of} is {percent(value)} off FP32's, where {limit.key} allows {_share(limit)}"
        by = f"{percent(value - limit.value)} too far"
    else:
        what = "becomes zero by rounding" if limit.name == UNDERFLOW else "is lost"
        message = f"{percent(value)} of the gradient{of} {what}, where {limit.key} allows {_share(limit)}"
        by = f"{percent(value - limit.value)} too much"
    check = _check_of(limit.name, f"{message}: {by}.", by, value, limit.value)
    return replace(check, module=figure.module, parameter=figure.parameter)


def _whole_underflow(limits: Sequence[Limit], report: Report) -> Iterator[Check]:
    """``limits.gradient_underflow`` itself: the share of all gradient elements that are lost."""
    lost = report.loss_scale.lost_as_judged
    for limit in limits:
        if lost is None:
            yield _unmeasured(limit, f"{limit.key}: no gradient was measured")
        elif lost > limit.value:
            by = f"{percent(lost - limit.value)} too much"
            at = scale(report.loss_scale.judged)
            message = (
                f"{percent(lost)} of all gradient elements are lost at loss scale {at}, where {limit.key} "
                f"allows {_share(limit)}: {by}."
            )
            yield _check_of(UNDERFLOW, message, by, lost, limit.value)


def _scale(report: Report) -> Iterator[Check]:
    """``gate.scale_in_window``: the distance from the window, in bits."""
    found = report.loss_scale
    if found.scaler == "none" and not found.searched and found.lost_as_judged is not None:
        return  # there is no scale, and nothing that needs one
    if not found.searched:
        message = "gate.scale_in_window: no loss scales were tried, so that no window is known"
        yield _check_of(SCALE, message, "not measured", None, None)
    elif found.window is None:
        message = f"No loss scale works, and so {scale(found.judged)} does not."
        yield _check_of(SCALE, message, "no scale works", math.inf, None)
    else:
        low, high = found.window
        if found.settles_at is not None and found.ceiling is not None:
            high = found.ceiling  # a dynamic scaler needs no margin
        above, below = math.log2(found.judged / high), math.log2(low / found.judged)
        if max(above, below) > 0:
            by = f"{_bits(max(above, below))} too {'high' if above > 0 else 'low'}"
            message = (
                f"The loss scale {scale(found.judged)} lies outside the window, {scale(low)} to "
                f"{scale(high)}: {by}."
            )
            limit = high if above > 0 else low
            yield _check_of(SCALE, message, by, max(above, below), limit)


def _unmeasured(limit: Limit, message: str) -> Check:
    return replace(_check_of(limit.name, message, "not measured", None, limit.value), module=limit.modules)


_TITLES = {
    HEADROOM: "less headroom than the limit",
    UNDERFLOW: "more underflow than the limit",
    LOST: "more gradient lost than the limit",
    DRIFT: "further from FP32 than the limit",
    SCALE: "the configured loss scale lies outside the window",
}


def _check_of(name: str, message: str, by: str, measured: float | None, limit: float | None) -> Check:
    """The check of the whole scan; those of a module or parameter fill that in."""
    return Check(name, CODES[name], _TITLES[name], "", "", None, message, by, measured, limit)


def _bits(value: float) -> str:
    """``0.6 bits``; never 0.0 for what is more."""
    return f"{value:.1f} bits" if value >= 0.05 else "less than 0.1 bits"


def _share(limit: Limit) -> str:
    return f"{100 * limit.value:g} %"
