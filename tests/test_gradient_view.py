"""Where gradients lie, worked out by hand on a model whose gradients are powers of two."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import case_runner
from ampdoctor.facts.floats import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FloatFormat
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.trace import Trace
from ampdoctor.facts.zones import NORMAL, OVERFLOW, SUBNORMAL, ZERO, elements_by_zone, zone_of
from ampdoctor.scales.gradient_view import GradientView, view_gradients
from ampdoctor.scales.reading import ScaleReading, Window, read_scales
from ampdoctor.scales.recordings import passes_shown
from ampdoctor.scales.selection import ACTIVATIONS, PARAMETERS, Selection
from case_runner import scan
from trace_builder import candidate, environment, parameter, record, reference, stats, trace

# first = [2^-3, 1, 1, 1], second = [2^14, 2^4, 1, 0], x = 1, loss = 2^-30 y. The FP16 tensors of backward, at
# loss scale 1:
#   the cast of y's gradient   2^-30
#   second's weight            2^-30 * h       = 2^-33, 2^-30, 2^-30, 2^-30
#   h                          2^-30 * second  = 2^-16, 2^-26, 2^-30, 0
#   first's weight             the same, times x
# 13 elements; the zeros of h and of first's weight are zero in FP32 as well, so 11 can be lost.


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 4, bias=False), nn.Linear(4, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[2.0**-3], [1.0], [1.0], [1.0]]))
            self.second.weight.copy_(torch.tensor([[2.0**14, 2.0**4, 1.0, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def step(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().sum() * 2.0**-30


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """Configured at 2^16, where nothing of it is flushed; the search adds 2^24."""
    return scan(TwoLayers(), torch.ones(1, 1), step)[0]


@pytest.fixture(scope="module")
def flushed_at_one() -> Trace:
    """Configured without a loss scale: the first cast makes everything zero."""
    return scan(TwoLayers(), torch.ones(1, 1), step, loss_scale=1.0)[0]


def reading_of(
    seen: Trace, fmt: FloatFormat | None = None, selection: Selection | None = None
) -> ScaleReading | None:
    return read_scales(seen, 0.01, 1.0, selection, fmt)


def view_of(seen: Trace, exponent: int, *args: Any) -> GradientView:
    reading = reading_of(seen, *args)
    assert reading is not None
    return view_gradients(seen, reading, exponent)


def test_the_recording_at_the_very_scale_is_read_unshifted(recorded: Trace) -> None:
    view = view_of(recorded, 16)
    assert [(r.role, r.exponent) for r in view.recordings] == [("candidate", 16)]
    assert view.whole.histogram.counts == {-17: 1, -14: 6, -10: 2, 0: 2}
    assert (view.fmt, view.recorded_as, view.before_rounding) == (FLOAT16, ("float16",), True)


def test_another_scale_is_the_best_recording_shifted(recorded: Trace) -> None:
    """At 2^5: 2^-28 and six times 2^-25 become zero, 2^-21 is subnormal, 2^-11 normal."""
    view = view_of(recorded, 5)
    assert [r.exponent for r in view.recordings] == [24]
    whole = view.whole
    assert whole.histogram.counts == {-28: 1, -25: 6, -21: 2, -11: 2}
    assert (whole.tensors, whole.nonzero, whole.structural_zeros) == (4, 11, 2)
    assert (whole.lost, whole.lost_before, whole.flushed) == (7, 0, 7)
    assert (whole.subnormal, whole.normal, whole.overflowed) == (2, 2, 0)
    assert whole.underflow_fraction == 7 / 11


def test_what_overflows_is_counted_by_element_and_by_tensor(recorded: Trace) -> None:
    """At 2^32 the 2^-16 of h and of first's weight are 2^16."""
    whole = view_of(recorded, 32).whole
    assert (whole.overflowed, whole.overflowing, whole.overflow_is_exact) == (2, 2, True)
    assert whole.normal == 9
    assert whole.largest.absmax == 2.0**-16
    assert view_of(recorded, 31).whole.overflowed == 0


def test_zeros_that_came_in_are_lost_and_not_flushed(flushed_at_one: Trace) -> None:
    """At 1 the cast flushes its 2^-30; behind it only zeros arrive."""
    whole = view_of(flushed_at_one, 0).whole
    assert (whole.lost, whole.lost_before, whole.flushed, whole.structural_zeros) == (11, 10, 1, 2)
    assert whole.most_flushed is not None
    assert (whole.most_flushed.site.op, whole.most_flushed.site.module) == ("aten::_to_copy", "")


def test_the_sweep_rests_on_the_recording_that_lost_least(flushed_at_one: Trace) -> None:
    view = view_of(flushed_at_one, 0)
    assert {t.recorded_at for t in view.reading.counted} == {24}
    # 2^-33 survives from 2^9 on, 2^-30 from 2^6, 2^-26 from 2^2
    shares = {p.exponent: p.underflow_fraction for p in view.reading.points}
    # 2^0 was run: a cast flushed all there was to flow back, of which the recording at 2^24 knows nothing
    first, second = view.reading.points[:2]
    assert (first.underflow_fraction, first.run, first.bound) == (1.0, True, None)
    assert first.predicted == pytest.approx(9 / 11)
    assert (second.run, second.bound, view.reading.points[24].bound) == (False, "lower", None)
    assert shares[2] == pytest.approx(7 / 11)
    assert shares[6] == pytest.approx(1 / 11)
    assert shares[9] == 0
    assert [p.exponent for p in view.reading.points if p.overflowing] == [32]
    assert view.reading.window == Window(9, 30)


def test_the_scales_that_were_run_stand_next_to_the_prediction(flushed_at_one: Trace) -> None:
    seen = {r.loss_scale: (r.finite, r.underflow_fraction) for r in view_of(flushed_at_one, 0).reading.runs}
    assert seen[1.0] == (True, 1.0)
    assert seen[2.0**24] == (True, 0.0)
    assert seen[2.0**32] == (False, None)


def test_layers_come_with_the_worst_first(recorded: Trace) -> None:
    layers = view_of(recorded, 5).layers
    assert [(layer.name, layer.lost, layer.nonzero) for layer in layers] == [
        ("", 1, 1),
        ("second", 5, 7),
        ("first", 1, 3),
    ]


@pytest.mark.parametrize(
    ("selection", "tensors"),
    [
        (Selection(PARAMETERS), {"second": 1, "first": 1}),
        (Selection(ACTIVATIONS), {"": 1, "second": 1}),
        (Selection(layers=("sec*",)), {"second": 2}),
        (Selection(layers=("first.weight",)), {"first": 1}),
        (Selection(PARAMETERS, ("second",)), {"second": 1}),
    ],
    ids=["parameters", "activations", "glob", "parameter by name", "parameters of a module"],
)
def test_a_selection_takes_some_of_the_gradients(
    recorded: Trace, selection: Selection, tensors: dict[str, int]
) -> None:
    view = view_of(recorded, 16, None, selection)
    found: dict[str, int] = {}
    for t in view.reading.counted:
        found[t.site.module] = found.get(t.site.module, 0) + 1
    assert found == tensors
    assert bool(view.reading.runs) == (
        selection.kind == PARAMETERS
    )  # runs count all gradients, and parameters'


def test_a_glob_takes_what_is_inside_the_modules_it_matches() -> None:
    selection = Selection(layers=("blocks.*",))
    assert selection.takes("blocks.1.ff.wo", "")
    assert Selection(layers=("blocks.1",)).takes("blocks.1.ff.wo", "")
    assert not Selection(layers=("blocks.1",)).takes("blocks.10", "")
    assert not selection.takes("", "")


def test_parameters_are_shown_by_name(recorded: Trace) -> None:
    view = view_of(recorded, 16, None, Selection(PARAMETERS))
    assert {layer.name for layer in view.layers} == {"first.weight", "second.weight"}


@pytest.mark.parametrize("mode", ["autocast", "half"])
def test_each_parameter_has_one_gradient_tensor_in_the_format_it_is_rounded_to(mode: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    seen, _ = scan(model, torch.ones(2, 3), lambda m, x: m(x).float().sum(), mode=mode, loss_scale=1.0)
    (run,) = (p for p in seen.passes if p.role == "candidate")
    named = {r.parameter: (r.stats.dtype, r.stats.numel) for r in run.sites if r.parameter}
    assert named == {
        "0.weight": ("float16", 12),
        "0.bias": ("float16", 4),
        "1.weight": ("float16", 8),
        "1.bias": ("float16", 2),
    }


def test_another_format_draws_other_zones(recorded: Trace) -> None:
    """At 2^16 float8_e4m3fn, which flushes from 2^-10 on, keeps the two elements that are 1."""
    view = view_of(recorded, 16, FLOAT8_E4M3FN)
    assert (view.whole.lost, view.whole.normal) == (9, 2)
    assert view.reading.runs == () and not view.is_recorded_format
    assert view_of(recorded, 0, BFLOAT16).whole.lost == 0


def test_where_no_pass_is_finite_the_reference_is_read() -> None:
    """A derivative of 2^20 overflows at any scale of 1 or more; FP32 holds it."""

    def far_too_much(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().sum() * 2.0**20

    seen, _ = scan(TwoLayers(), torch.ones(1, 1), far_too_much)
    view = view_of(seen, 0)
    assert [r.role for r in view.recordings] == ["reference"]
    # the sites with a twin in FP32: second's weight 2^17 .., h and first's weight 2^34 ..
    assert view.whole.histogram.counts == {17: 1, 20: 5, 24: 2, 34: 2}
    assert view.whole.overflowed == 10
    assert view.reading.window is None


# ---------------------------------------------------------------- traces by hand


def gradient(module: str, order: int, counts: dict[int, int], **changes: Any) -> Any:
    """A backward tensor with these exponents, seen before it was rounded."""
    numel = sum(counts.values())
    absmax = 2.0 ** max(counts)
    values = {"histogram": ExponentHistogram(counts), "absmax_before_rounding": absmax, "numel": numel}
    return record(module, "aten::mm", order, absmax, phase="backward", **(values | changes))


def test_elements_next_to_the_end_of_the_range_make_the_count_a_lower_bound() -> None:
    """65520 and 32768 share an exponent: the histogram cannot say how many of the three overflow."""
    sites = (gradient("fc", 0, {15: 3, 0: 1}, absmax_before_rounding=65520.0),)
    seen = trace(passes=(reference(), candidate(sites=sites)))
    whole = view_of(seen, 16).whole
    assert (whole.overflowed, whole.overflowing, whole.overflow_is_exact) == (1, 1, False)
    fits = (gradient("fc", 0, {15: 3, 0: 1}, absmax_before_rounding=65504.0),)
    seen = trace(passes=(reference(), candidate(sites=fits)))
    assert view_of(seen, 16).whole.overflow_is_exact
    assert view_of(seen, 16).whole.overflowed == 0


def test_what_is_infinite_by_design_is_counted_apart() -> None:
    mask = record("fc", "aten::masked_fill", 0, phase="backward", inf=2, nan=0, numel=4)
    seen = trace(passes=(reference(), candidate(sites=(mask, gradient("fc", 1, {0: 4})))))
    view = view_of(seen, 16)
    assert (view.infs, view.nans, view.whole.tensors) == (2, 0, 1)


def test_a_batch_without_finite_gradients_is_left_out_and_named() -> None:
    good = candidate(sites=(gradient("fc", 0, {0: 4}),))
    bad = candidate(batch=1, loss=math.nan, parameters=(parameter("w", nan=4),), sites=good.sites)
    view = view_of(trace(passes=(reference(), good, reference(batch=1), bad)), 16)
    assert [r.batch for r in view.recordings] == [0]
    assert view.batches_without == (1,)


def test_a_fault_in_forward_leaves_nothing_to_look_at() -> None:
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=4),), sites=(gradient("fc", 0, {0: 4}),))
    seen = trace(passes=(reference(), sick))
    assert not passes_shown(seen)
    assert reading_of(seen) is None


def test_gradients_in_float32_are_not_rounded_and_not_shown() -> None:
    wide = record("fc", "aten::mm", 0, phase="backward", dtype="float32")
    seen = trace(passes=(reference(), candidate(sites=(wide,))))
    assert passes_shown(seen)
    assert reading_of(seen) is None


def test_a_recording_at_a_scale_that_is_no_power_of_two_cannot_be_shifted() -> None:
    odd = candidate(loss_scale=1000.0, sites=(gradient("fc", 0, {0: 4}),))
    seen = trace(environment=environment(loss_scale=1000.0), passes=(reference(), odd))
    assert reading_of(seen) is None
    ladder = replace(odd, role="ladder", loss_scale=1024.0)
    assert view_of(replace(seen, passes=(reference(), odd, ladder)), 10).recordings[0].role == "ladder"


def test_the_zones_of_float16() -> None:
    assert [zone_of(e, FLOAT16) for e in (-26, -25, -15, -14, 15, 16)] == [
        ZERO, SUBNORMAL, SUBNORMAL, NORMAL, NORMAL, OVERFLOW,
    ]  # fmt: skip


def test_the_tie_at_the_lower_end_is_zero() -> None:
    histogram = ExponentHistogram({-25: 5, -24: 1}, powers={-25: 2})
    assert list(elements_by_zone(histogram, FLOAT16)) == [
        (-25, ZERO, 2),
        (-25, SUBNORMAL, 3),
        (-24, SUBNORMAL, 1),
    ]


def test_values_seen_after_rounding_say_so() -> None:
    seen = trace(passes=(reference(), candidate(sites=(gradient("fc", 0, {0: 4}, flushed=None),))))
    assert not view_of(seen, 16).before_rounding
    assert stats(1.0).flushed == 0  # the builder's own default is a tensor seen before rounding


def test_each_tensor_is_read_where_it_was_not_flushed() -> None:
    """One tower is finite at 2^1 and not at 2^16; the other is all zero at 2^1 and whole at 2^16."""
    loud = gradient("loud", 0, {12: 4})
    faint = record("faint", "aten::mm", 1, 0.0, phase="backward", absmax_before_rounding=0.0)
    exact = reference(sites=(
        gradient("loud", 0, {11: 4}, dtype="float32"), gradient("faint", 1, {-30: 4}, dtype="float32"),
    ))  # fmt: skip
    sick = candidate(
        sites=(record("loud", "aten::mm", 0, phase="backward", inf=4), gradient("faint", 1, {-14: 4})),
        parameters=(parameter("w", inf=1),),
    )
    low = candidate(role="ladder", loss_scale=2.0, sites=(loud, faint))
    seen = trace(passes=(exact, sick, low))
    shown = view_of(seen, 16, None, Selection(layers=("faint*",)))
    assert {t.recorded_at for t in shown.reading.counted} == {16}
    assert shown.whole.underflow_fraction == 0
    assert [p.underflow_fraction for p in shown.reading.points[4:7]] == [1.0, 0.0, 0.0]  # 2^-30 * 2^5 is kept
    # Without the sick run nothing but the reference knows what was flushed.
    (tensor,) = view_of(trace(passes=(exact, low)), 16, None, Selection(layers=("faint*",))).reading.counted
    assert (tensor.from_reference, tensor.recorded_at, tensor.absmax) == (True, 0, 4 * 2.0**-32)


def test_a_window_without_room_for_the_margin_is_the_ceiling_for_every_reader() -> None:
    """A largest gradient of 2^15 fits at 2^0 and not at 2^1: with a bit of margin 2^0 is still what works."""
    seen, report = case_runner.scan(nn.Linear(1, 1, bias=False), torch.ones(1, 1), steep, loss_scale=1.0)
    view = view_of(seen, 0, None, Selection(layers=("*",)))
    assert report.loss_scale.window == (1.0, 1.0)
    assert view.reading.window == Window(0, 0)


def steep(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().sum() * 2.0**15
