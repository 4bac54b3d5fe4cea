"""The report's gradient histograms, from traces by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.gradient_histogram import gradient_histogram_of
from ampdoctor.diagnose.report import GradientBins, GradientHistogram
from ampdoctor.facts.histogram import ExponentHistogram
from ampdoctor.facts.trace import SiteRecord
from ampdoctor.scales.powers_of_two import counted, shares_zeroed
from ampdoctor.scales.recordings import gradients_of
from trace_builder import candidate, module, parameter, record, reference, trace


def backward(name: str, counts: dict[int, int], absmax: float, order: int, **changes: Any) -> SiteRecord:
    """A gradient recorded at loss scale 2^16, with these exponents before it was rounded."""
    powers = changes.pop("powers", {})
    zeros = changes.pop("zeros", 0)
    return record(
        name,
        "aten::mm",
        order,
        absmax,
        "backward",
        numel=sum(counts.values()) + zeros,
        zeros=zeros,
        histogram=ExponentHistogram(counts, zeros=zeros, powers=powers),
        absmax_before_rounding=absmax,
        **changes,
    )


SITES = (
    backward("b", {-10: 2, 4: 1}, 16.0, 1, powers={4: 1}),
    # at loss scale 1 these are 2^-28 and 2^-25 exactly: both become zero there
    backward("a", {-12: 3, -9: 1}, 2.0**-9, 2, powers={-9: 1}, zeros=5),
)
MODULES = (module("", "Net"), module("a"), module("b"))


def histogram(sites: tuple[SiteRecord, ...] = SITES, **changes: Any) -> GradientHistogram | None:
    passes = (reference(), candidate(sites=sites, **changes))
    return gradient_histogram_of(trace(modules=MODULES, passes=passes))


def test_exponents_at_loss_scale_one_by_module_and_together() -> None:
    found = histogram()
    assert found is not None
    a = GradientBins(
        "a",
        ExponentHistogram({-28: 3, -25: 1}, zeros=5, powers={-25: 1}),
        nonzero=4,
        absmax=2.0**-25,
        # the tie survives from 2^1 on; the others from 2^3, where they share its exponent but are larger
        underflow_fraction=(1.0, 0.75, 0.75),
    )
    assert found.dtype == "float16"
    assert [layer.module for layer in found.layers] == ["a", "b"]
    assert found.layers[0] == a
    assert found.total.histogram.counts == {-28: 3, -26: 2, -25: 1, -12: 1}
    assert (found.total.nonzero, found.total.absmax) == (7, 2.0**-12)
    assert list(found.total.histogram.counts) == [-28, -26, -25, -12]


def test_shares_are_those_of_the_sweep() -> None:
    found = histogram()
    assert found is not None
    tensors = counted(gradients_of(trace(passes=(reference(), candidate(sites=SITES)))))
    expected = shares_zeroed(tensors)
    assert list(found.total.underflow_fraction) == [share for share in expected if share]
    assert found.total.underflow_fraction == pytest.approx((6 / 7, 3 / 7, 3 / 7))


def test_a_pass_that_is_not_finite_has_none() -> None:
    assert histogram(parameters=(parameter("w", nan=1),)) is None


def test_no_gradient_in_low_precision_has_none() -> None:
    sites = (backward("a", {0: 1}, 1.0, 1, dtype="float32"),)
    assert histogram(sites) is None
    assert diagnose(trace()).to_dict()["gradient_histogram"] is None


def test_the_document_has_exponents_as_keys() -> None:
    passes = (reference(), candidate(sites=SITES))
    document = diagnose(trace(modules=MODULES, passes=passes)).to_dict()["gradient_histogram"]
    assert document["total"]["histogram"]["counts"] == {"-28": 3, "-26": 2, "-25": 1, "-12": 1}
    assert [layer["module"] for layer in document["layers"]] == ["a", "b"]
