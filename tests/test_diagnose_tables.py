"""The report's tables: layers, parameters, run-up."""

from __future__ import annotations

import math

import pytest

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.facts.histogram import ExponentHistogram
from trace_builder import (
    birth,
    candidate,
    environment,
    module,
    parameter,
    record,
    reference,
    trace,
)


def test_headroom_is_measured_in_the_format_of_the_tensor() -> None:
    """65504 / 4094 is 16 in FP16; an FP32 tensor has no headroom to run out of."""
    sites = (
        record("half", "aten::mm", 0, 4094.0),
        record("wide", "aten::softmax", 1, 1e6, dtype="float32"),
    )
    rows = diagnose(
        trace(
            modules=(module("half"), module("wide", "Softmax"), module("idle")),
            passes=(candidate(sites=sites),),
        )
    ).layers
    assert [(row.module, row.type) for row in rows] == [("half", "Linear"), ("wide", "Softmax")]
    assert rows[0].forward is not None
    assert rows[0].forward.headroom_bits == 4.0
    assert rows[1].forward is not None
    assert (rows[1].forward.absmax, rows[1].forward.headroom_bits) == (1e6, None)
    assert rows[0].gradient is None


def test_a_module_shows_its_worst_batch() -> None:
    quiet = candidate(batch=0, sites=(record("fc", "aten::mm", 0, 1.0),))
    loud = candidate(batch=1, sites=(record("fc", "aten::mm", 0, 8188.0),))
    (row,) = diagnose(trace(modules=(module("fc"),), passes=(loud, quiet))).layers
    assert row.forward is not None
    assert (row.forward.absmax, row.forward.headroom_bits) == (8188.0, 3.0)


def test_a_mask_says_nothing_about_headroom() -> None:
    """Scores up to 5 with finfo.min added at masked places, and a tensor filled with it."""
    sites = (
        record("attn", "aten::bmm", 0, 4.0),
        record("attn", "aten::add", 1, 65504.0, min=-65504.0, max=5.0),
        record("attn", "aten::masked_fill", 2, 65504.0),
    )
    report = diagnose(trace(modules=(module("attn"),), passes=(reference(), candidate(sites=sites))))
    (row,) = report.layers
    assert row.forward is not None
    assert (row.forward.absmax, row.forward.headroom_bits) == (4.0, math.log2(65504 / 4))
    assert [f.code for f in report.findings] == ["AMP901"]


def test_gradients_are_unscaled_and_shares_are_of_the_reference() -> None:
    """Scaled by 1024; 3 of 12 elements nonzero in FP32 were rounded to zero, 6 are subnormal."""
    histogram = ExponentHistogram({-20: 6, 3: 3}, zeros=7)
    here = record(
        "fc", "aten::mm", 5, 8.0, phase="backward", numel=16, flushed=3, zeros=7, histogram=histogram
    )
    there = record("fc", "aten::mm", 4, 8.0, phase="backward", numel=16, zeros=4, dtype="float32")
    passes = (reference(sites=(there,)), candidate(loss_scale=1024.0, sites=(here,)))
    t = trace(modules=(module("fc"),), passes=passes, environment=environment(loss_scale=1024.0))
    (row,) = diagnose(t).layers
    assert row.gradient is not None
    assert row.gradient.absmax == 8.0 / 1024
    assert row.gradient.underflow_fraction == 3 / 12
    assert row.gradient.subnormal_fraction == 6 / 12


def test_a_cast_has_no_twin_and_counts_what_was_nonzero_before_it() -> None:
    """4 of 16 zeros were made by the cast: 12 elements are left of 16 nonzero ones."""
    cast = record("fc", "aten::_to_copy", 5, 1.0, phase="backward", numel=16, flushed=4, zeros=4)
    (row,) = diagnose(trace(modules=(module("fc"),), passes=(candidate(sites=(cast,)),))).layers
    assert row.gradient is not None
    assert row.gradient.underflow_fraction == 4 / 16


def test_a_share_that_was_not_measured_is_none() -> None:
    unseen = record("fc", "aten::mm", 5, 1.0, phase="backward", flushed=None)
    spoiled = record("nan", "aten::mm", 6, 1.0, phase="backward", flushed=1, nan=2)
    rows = diagnose(
        trace(modules=(module("fc"), module("nan")), passes=(candidate(sites=(unseen, spoiled)),))
    ).layers
    assert [row.gradient.underflow_fraction for row in rows if row.gradient] == [None, None]


def test_layers_come_worst_first_and_keep_their_place() -> None:
    sites = (
        record("calm", "aten::mm", 0, 1.0),
        record("loud", "aten::mm", 1, 1000.0),
        record("sick", "aten::mm", 2, 2.0, inf=1),
    )
    t = trace(
        modules=(module("calm"), module("sick"), module("loud")),
        births=(birth("sick"),),
        passes=(reference(), candidate(loss=math.nan, sites=sites)),
    )
    rows = diagnose(t).layers
    assert [(r.module, r.position, r.born) for r in rows] == [
        ("sick", 1, "inf"),
        ("loud", 2, ""),
        ("calm", 0, ""),
    ]


def test_a_recomputed_op_is_not_counted_twice() -> None:
    again = record("fc", "aten::mm", 9, 50.0, phase="backward", recomputed=True)
    (row,) = diagnose(
        trace(modules=(module("fc"),), passes=(candidate(sites=(record("fc", "aten::mm", 0), again)),))
    ).layers
    assert row.gradient is None


def test_a_parameter_tells_what_it_lost_and_what_its_own_op_rounded_away() -> None:
    made = record("fc", "aten::_to_copy", 7, phase="backward", parameter="fc.weight", flushed=5)
    lossy = parameter("fc.weight", absmax=0.25, reference_nonzero=50, lost=10, relative_error=0.01)
    (row,) = diagnose(trace(passes=(candidate(sites=(made,), parameters=(lossy,)),))).parameters
    assert row.name == "fc.weight"
    assert (row.absmax, row.underflow_fraction, row.lost_fraction, row.relative_error) == (
        0.25,
        0.1,
        0.2,
        0.01,
    )


def test_a_parameter_without_reference_has_no_shares() -> None:
    bare = parameter("w", reference_nonzero=None, lost=None, relative_error=None)
    (row,) = diagnose(trace(passes=(candidate(parameters=(bare,)),))).parameters
    assert (row.underflow_fraction, row.lost_fraction, row.relative_error) == (None, None, None)


def test_the_run_up_is_the_last_modules_before_the_fault() -> None:
    """The loudest tensor of each stretch in one module; casts, masks and later ops are left out."""
    sites = (
        record("too_early", "aten::mm", 0, 1.0),
        record("embed", "aten::embedding", 1, 2.0),
        record("wi", "aten::_to_copy", 2, 500.0),
        record("wi", "aten::mm", 3, 8.0),
        record("wi", "aten::relu", 4, 4.0),
        record("attn", "aten::masked_fill", 5, 65504.0),
        record("norm", "aten::mul", 6, 16.0, dtype="float32"),
        record("wo", "aten::addmm", 7, 32.0),
        record("wo", "aten::mm", 8, 60000.0, inf=1),
        record("after", "aten::mm", 9, 9.0),
    )
    fault = birth("wo", order=8, exact_value=131008.0)
    passes = (reference(), candidate(loss=math.nan, sites=sites))
    rows = diagnose(trace(births=(fault,), passes=passes)).run_up
    assert [(r.module, r.absmax, r.growth) for r in rows] == [
        ("embed", 2.0, None),
        ("wi", 8.0, 4.0),
        ("norm", 16.0, 2.0),
        ("wo", 32.0, 2.0),
        ("wo", 131008.0, 4094.0),
    ]
    assert [r.headroom_bits for r in rows][2:] == [None, math.log2(65504 / 32), -1.0]
    assert [r.here for r in rows] == [False] * 4 + [True]


def test_a_division_by_zero_has_no_run_up() -> None:
    fault = birth(rerun="inf", exact_value=math.inf)
    passes = (reference(), candidate(loss=math.nan, sites=(record("a", "aten::mm", 0),)))
    assert diagnose(trace(births=(fault,), passes=passes)).run_up == ()


@pytest.mark.parametrize(("scale", "rows"), [(65536.0, 2), (1.0, 0)])
def test_a_backward_run_up_needs_a_pass_at_the_scale_of_the_fault(scale: float, rows: int) -> None:
    fault = birth("fc", phase="backward", loss_scale=scale, reaches_loss=False)
    sites = (
        record("head", "aten::mm", 0, 4.0, phase="backward"),
        record("fc", "aten::mm", 1, phase="backward"),
    )
    passes = (reference(), candidate(parameters=(parameter("w", inf=1),), sites=sites))
    assert len(diagnose(trace(births=(fault,), passes=passes)).run_up) == rows


def test_losses_of_both_precisions_are_kept() -> None:
    passes = (reference(loss=2.0), candidate(loss=2.5), reference(batch=1, loss=3.0))
    losses = diagnose(trace(passes=passes)).losses
    assert [(x.batch, x.reference, x.candidate) for x in losses] == [(0, 2.0, 2.5), (1, 3.0, None)]


def test_a_site_with_other_elements_than_its_twin_is_compared_with_itself() -> None:
    """Routing gave this site 4 elements here and 40 in FP32: nothing was flushed, so nothing is lost."""
    here = record("fc", "aten::index", 1, phase="backward", numel=4)
    there = record("fc", "aten::index", 1, phase="backward", numel=40, dtype="float32")
    passes = (reference(sites=(there,)), candidate(sites=(here,)))
    (row,) = diagnose(trace(modules=(module("fc"),), passes=passes)).layers
    assert row.gradient is not None
    assert row.gradient.underflow_fraction == 0.0
