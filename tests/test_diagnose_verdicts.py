"""One hand-made trace per verdict: what was seen decides, in the documented order."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.policy import Policy
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.site import Site
from ampdoctor.facts.trace import ZeroOrigin
from trace_builder import (
    bad_tensor,
    birth,
    candidate,
    environment,
    module,
    operand,
    parameter,
    raised,
    record,
    reference,
    source,
    step,
    trace,
)

SICK = {"loss": math.nan, "parameters": (parameter("w", nan=100, absmax=None),)}
"""What a pass ends with after a NaN."""
HALF_GONE = parameter("w", lost=50, relative_error=0.7)


def sick(*births: Any, **changes: Any) -> Report:
    """A scan whose candidate is NaN and whose reference is healthy."""
    passes = (reference(), candidate(**SICK))
    return diagnose(trace(**({"births": births, "passes": passes} | changes)))


def codes(report: Report) -> list[str]:
    """Codes and severities of the findings, doubts about the measurement left out."""
    return [f"{f.severity} {f.code}" for f in report.findings if not f.code.startswith("AMP9")]


GENUINE: dict[str, Any] = {"reference": "same", "rerun": "nan", "value": "nan", "exact_value": math.nan}
FLUSHED: dict[str, Any] = {"reference": "finite", "rerun": "inf", "exact_value": math.inf}
BACKWARD: dict[str, Any] = {
    "phase": "backward",
    "forward_op": "aten::addmm",
    "reaches_loss": False,
    "reaches_gradients": ("w",),
}
BOTH_SICK = (reference(**SICK), candidate(**SICK))


def test_nothing_wrong_is_clean() -> None:
    report = diagnose(trace())
    assert (report.verdict, codes(report), report.first_fault) == ("clean", [], None)
    assert report.sentence == "CLEAN. Nothing overflows at loss scale 65,536, and no gradient is lost."


@pytest.mark.parametrize(
    ("numel", "words"),
    [
        (1_000, "the 1.0 % of the gradient that is lost harms no parameter."),
        (100_000, "no gradient is lost."),  # 10 of 100,000
    ],
)
def test_clean_says_what_is_lost_without_harm(numel: int, words: str) -> None:
    w = parameter("w", numel=numel, reference_nonzero=numel, lost=10)
    sites = (record("fc", "aten::mm", 0),)
    passes = (reference(parameters=(w,), sites=sites), candidate(parameters=(w,), sites=sites))
    report = diagnose(trace(passes=passes))
    assert (report.verdict, report.sentence) == (
        "clean", f"CLEAN. Nothing overflows at loss scale 65,536, and {words}",
    )  # fmt: skip


def test_a_value_that_float64_holds_is_an_overflow() -> None:
    report = sick(birth())
    assert (report.verdict, codes(report)) == ("forward-overflow", ["error AMP101"])
    fault = report.first_fault
    assert fault is not None
    assert (fault.phase, fault.cause, fault.module, fault.op) == (
        "forward",
        "range",
        "blocks.1.ff.wo",
        "aten::mm",
    )
    assert (fault.exact_value, fault.sample, fault.numel, fault.fp32_also_fails) == (66246.1, 0, 1536, False)


def test_inputs_that_rounding_zeroed_are_an_underflow() -> None:
    zero = ZeroOrigin(Site("forward", "head", "aten::rsub", 0), source(12, "1 - p"), 3, 2e-4, None)
    report = sick(birth("head", "aten::log", zero_origin=zero, **FLUSHED))
    assert (report.verdict, codes(report)) == ("forward-underflow", ["error AMP104"])
    assert report.first_fault is not None
    assert report.first_fault.root == zero


def test_a_flush_that_shows_in_backward_is_still_a_forward_underflow() -> None:
    report = sick(birth("head", "aten::div", **(BACKWARD | FLUSHED)))
    assert (report.verdict, codes(report)) == ("forward-underflow", ["error AMP104"])
    assert report.first_fault is not None
    assert report.first_fault.phase == "backward"


def test_what_fp32_has_too_is_undefined() -> None:
    report = sick(birth("attn", "aten::_softmax", **GENUINE), passes=BOTH_SICK)
    assert (report.verdict, codes(report)) == ("forward-undefined", ["error AMP102"])
    assert report.first_fault is not None
    assert report.first_fault.fp32_also_fails


def test_an_infinity_the_forward_absorbs_leaves_only_the_derivative_undefined() -> None:
    genuine_inf = GENUINE | {
        "value": "inf",
        "rerun": "inf",
        "reaches_loss": False,
        "reaches_gradients": ("w",),
    }
    report = sick(birth("act", "aten::exp", **genuine_inf), passes=BOTH_SICK)
    assert (report.verdict, codes(report)) == ("backward-undefined", ["error AMP202"])
    assert report.first_fault is not None
    assert report.first_fault.phase == "forward"


def test_a_derivative_that_fp32_has_not_either_is_undefined() -> None:
    report = sick(birth("sge", "aten::div", **(BACKWARD | GENUINE)), passes=BOTH_SICK)
    assert (report.verdict, codes(report)) == ("backward-undefined", ["error AMP202"])


def test_a_gradient_that_overflows_at_the_configured_scale_only() -> None:
    report = sick(birth(**BACKWARD))
    assert (report.verdict, codes(report)) == ("backward-overflow", ["error AMP201"])


def test_a_gradient_that_overflows_at_scale_one_too() -> None:
    low, high = birth(loss_scale=1.0, **BACKWARD), birth(id=1, **BACKWARD)
    report = sick(high, low)
    assert (report.verdict, codes(report)) == ("no-workable-scale", ["error AMP204"])
    assert report.first_fault is not None
    assert report.first_fault.loss_scale == 1.0


def test_forward_comes_before_backward_and_the_low_scale_before_the_high() -> None:
    faults = (
        birth(id=0, **BACKWARD | {"order": 5}),
        birth(id=1, loss_scale=1.0, **BACKWARD | {"order": 50}),
        birth("late", id=2, order=40, source=source(2)),
        birth("early", id=3, order=30, source=source(3)),
        birth("next_batch", id=4, order=1, batch=1, source=source(4)),
    )
    report = sick(*faults)
    assert report.first_fault is not None
    assert report.first_fault.module == "early"
    assert codes(report) == ["error AMP101"] * 3 + ["error AMP204"]


@pytest.mark.parametrize("kind", ["batch", "buffer", "parameter"])
def test_a_nan_that_came_in_and_reaches_the_loss_is_bad_input(kind: str) -> None:
    came_in = birth(origin=kind, name='["ctx"]', site=None, source=None, **GENUINE)
    report = sick(came_in, bad_tensors=(bad_tensor(kind=kind),), passes=BOTH_SICK)
    assert (report.verdict, codes(report)) == ("bad-input", ["error AMP105"])
    assert report.first_fault is not None
    assert report.first_fault.tensor.endswith('["ctx"]')


def test_bad_input_comes_before_an_overflow() -> None:
    came_in = birth(id=1, origin="batch", name='["x"]', site=None, source=None, **GENUINE)
    report = sick(birth(), came_in, bad_tensors=(bad_tensor(name='["x"]'),))
    assert report.verdict == "bad-input"


def test_a_nan_label_that_the_loss_masks_spoils_the_backward() -> None:
    path = (step("", "aten::sub", "nan"), step("", "aten::pow", "nan", "backward", line=32))
    came_in = birth(
        origin="batch", name='["y"]', site=None, source=None, path=path,
        **(GENUINE | {"reaches_loss": False, "reaches_gradients": ("w",)}),
    )  # fmt: skip
    report = sick(came_in, bad_tensors=(bad_tensor(name='["y"]'),), passes=BOTH_SICK)
    assert (report.verdict, codes(report)) == ("backward-undefined", ["error AMP202", "warning AMP105"])
    fault = report.first_fault
    assert fault is not None
    assert (fault.phase, fault.op, fault.source, fault.tensor) == (
        "backward", "aten::pow", source(32, "x = x + y"), 'batch["y"]',
    )  # fmt: skip


def test_an_infinity_in_a_mask_is_no_bad_input() -> None:
    mask = birth(
        id=0, origin="buffer", name="mask", value="inf", site=None, source=None,
        reaches_loss=False, reaches_gradients=(),
    )  # fmt: skip
    row = birth("attn", "aten::_softmax", id=1, parents=(0,), **GENUINE)
    tensors = (bad_tensor(kind="buffer", name="mask", nan=0, inf=4, batch=None),)
    report = sick(mask, row, bad_tensors=tensors, passes=BOTH_SICK)
    assert (report.verdict, codes(report)) == ("forward-undefined", ["error AMP102"])


def test_a_mask_that_harms_nothing_is_not_mentioned() -> None:
    mask = birth(
        origin="batch", name='["mask"]', value="inf", site=None, source=None,
        reaches_loss=False, reaches_gradients=(),
    )  # fmt: skip
    tensors = (bad_tensor(name='["mask"]', nan=0, inf=4),)
    report = diagnose(trace(births=(mask,), bad_tensors=tensors))
    assert (report.verdict, codes(report)) == ("clean", [])


def test_an_exception_in_low_precision_only() -> None:
    refused = raised(constant=None, op="aten::binary_cross_entropy", message="unsafe to autocast")
    report = diagnose(trace(passes=(reference(), candidate(loss=None, raised=refused, parameters=()))))
    assert (report.verdict, codes(report)) == ("raises", ["error AMP107"])
    assert report.first_fault is not None
    assert (report.first_fault.value, report.first_fault.cause) == (None, None)


def test_an_exception_over_a_constant_is_an_overflow() -> None:
    report = diagnose(trace(passes=(reference(), candidate(loss=None, raised=raised(), parameters=()))))
    assert (report.verdict, codes(report)) == ("forward-overflow", ["error AMP106"])
    fault = report.first_fault
    assert fault is not None
    assert (fault.value, fault.cause, fault.exact_value, fault.module) == ("inf", "range", -1e9, "attn")


def test_an_exception_in_both_precisions_is_no_diagnosis() -> None:
    passes = (reference(raised=raised(), sites=()), candidate(raised=raised(), sites=()))
    assert diagnose(trace(passes=passes)).verdict == "not-measured"


def test_gradients_that_rounding_zeroed() -> None:
    passes = (reference(), candidate(sites=(record("fc", "aten::mm", 0),), parameters=(HALF_GONE,)))
    report = diagnose(trace(passes=passes))
    assert (report.verdict, codes(report)) == ("gradient-underflow", ["error AMP203"])
    assert report.first_fault is None
    assert report.loss_scale.lost_fraction == {"65536": 0.5}


def test_an_absorbed_infinity_that_changes_the_loss_is_a_silent_overflow() -> None:
    absorbed = birth(
        reaches_loss=False, reaches_gradients=(), absorbed_at=step("norm", "aten::rsqrt", "finite")
    )
    passes = (reference(loss=4.0), candidate(loss=3.6, sites=(record("norm", "aten::pow", 0),)))
    report = diagnose(trace(births=(absorbed,), passes=passes))
    assert (report.verdict, codes(report)) == ("forward-overflow", ["error AMP101"])
    assert report.sentence == (
        "OVERFLOW in forward, silently. blocks.1.ff.wo leaves the FP16 range; the loss is 10.0 % off FP32."
    )


def test_an_absorbed_infinity_that_changes_nothing_is_information() -> None:
    absorbed = birth(
        reaches_loss=False, reaches_gradients=(), absorbed_at=step("norm", "aten::rsqrt", "finite")
    )
    report = diagnose(trace(births=(absorbed,)))
    assert (report.verdict, codes(report)) == ("clean", ["info AMP101"])


def test_underflow_in_backward_does_not_make_an_absorbed_infinity_the_fault() -> None:
    """At scale 1 a gradient of 2e-5 lies under FP16's normal range: that it is lost is backward's affair."""
    absorbed = birth(loss_scale=1.0, reaches_loss=False, reaches_gradients=())
    tiny = parameter("w", lost=90, relative_error=0.9, reference_absmax=2e-5)
    passes = (
        reference(),
        candidate(loss_scale=1.0, sites=(record("fc", "aten::mm", 0),), parameters=(tiny,)),
    )
    report = diagnose(trace(births=(absorbed,), passes=passes, environment=environment(loss_scale=1.0)))
    assert (report.verdict, codes(report)) == ("gradient-underflow", ["error AMP203", "info AMP101"])


def test_what_both_precisions_make_and_survive_is_not_mentioned() -> None:
    harmless = birth(reference="same", rerun="inf", reaches_loss=False, reaches_gradients=("w",))
    report = diagnose(trace(births=(harmless,)))
    assert (report.verdict, codes(report)) == ("clean", [])


def test_a_sick_candidate_needs_an_explanation_even_if_fp32_has_the_value_too() -> None:
    report = sick(birth(reference="same", rerun="inf"))
    assert (report.verdict, codes(report)) == ("forward-undefined", ["error AMP102"])


def test_a_nan_made_of_an_overflow_is_not_a_second_fault() -> None:
    inf = birth(id=0, reaches_loss=False, reaches_gradients=())
    nan = birth(
        "norm", "aten::sub", id=1, order=11, parents=(0,), **(FLUSHED | {"value": "nan", "rerun": "nan"})
    )
    report = sick(inf, nan)
    assert codes(report) == ["error AMP101"]
    assert report.first_fault is not None
    assert report.first_fault.reaches_loss  # through the NaN it became


def test_two_outputs_of_one_call_are_one_fault() -> None:
    loss = birth("", "aten::_ctc_loss", id=0, **GENUINE)
    table = birth(
        "",
        "aten::_ctc_loss",
        id=1,
        site=Site("forward", "", "aten::_ctc_loss", 0, 1),
        **(GENUINE | {"value": "inf", "reaches_loss": False}),
    )
    assert codes(sick(loss, table, passes=BOTH_SICK)) == ["error AMP102"]


def test_a_fault_nobody_could_follow_is_inferred_from_the_counts() -> None:
    """The second look saw nothing (a model that is not deterministic), yet the pass is NaN."""
    clean_site = record("a", "aten::mm", 0, dtype="float32")
    fp32 = reference(sites=(clean_site, record("b", "aten::mm", 1, dtype="float32")))
    bad = candidate(sites=(record("a", "aten::mm", 0), record("b", "aten::mm", 1, inf=2)), **SICK)
    report = diagnose(trace(passes=(fp32, bad)))
    assert report.verdict == "forward-overflow"
    assert report.first_fault is not None
    assert report.first_fault.module == "b"
    assert "the birth itself (a second run did not show the fault again)" in report.not_seen


def test_a_partial_scan_rules_nothing_out() -> None:
    assert diagnose(trace(interrupted=True)).verdict == "not-measured"
    assert sick(birth(), interrupted=True).verdict == "forward-overflow"


def test_no_ops_at_all_is_not_measured() -> None:
    assert diagnose(trace(passes=())).verdict == "not-measured"


def test_a_forward_op_recomputed_in_backward_is_no_matter_of_the_scale() -> None:
    again = birth("ffn", "aten::mul", **BACKWARD | {"loss_scale": 1.0})
    passes = (
        reference(),
        candidate(sites=(record("ffn", "aten::mul", 59, phase="backward", recomputed=True),), **SICK),
    )
    report = sick(again, passes=passes)
    assert (report.verdict, codes(report)) == ("forward-overflow", ["error AMP101"])


def test_a_policy_selects_and_ignores_rules_by_prefix() -> None:
    t = trace(births=(birth(),), passes=(reference(), candidate(**SICK)))
    assert [f.code for f in diagnose(t, Policy(select=("AMP1",))).findings] == ["AMP101"]
    assert [f.code for f in diagnose(t, Policy(ignore=("AMP101",))).findings] == ["AMP901"]


def test_a_clip_operand_without_dimension_is_named() -> None:
    scale = operand(dtype="float32", shape=(), absmax=162755.0)
    report = sick(birth("", "aten::mul", operands=(scale, operand(absmax=0.375)), exact_value=61073.0))
    (finding,) = [f for f in report.findings if f.code == "AMP101"]
    assert finding.message.startswith("An operand of 162,755 is rounded to FP16 before the op")
    assert finding.remedy.startswith("The FP32 operand has no dimension")


def test_modules_are_named_by_their_class() -> None:
    report = sick(birth(), modules=(module("blocks.1.ff.wo", "Linear"),))
    assert report.first_fault is not None
    assert report.first_fault.module_type == "Linear"
