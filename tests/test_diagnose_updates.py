"""What becomes of an optimizer's step in the diagnosis: hand-made counts, rules, severities, sentences."""

from __future__ import annotations

from typing import Any

from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.report import Finding, Report
from ampdoctor.facts.trace import OptimizerStep, Pass
from ampdoctor.facts.updates import ParameterUpdate
from trace_builder import birth, candidate, environment, parameter, record, reference, source, trace

SITES = (record("fc", "aten::addmm", 0),)
MAKES = source(7, "return torch.optim.Adam(model.parameters())")


def update(name: str = "w", **changes: Any) -> ParameterUpdate:
    """100 FP16 elements that all move, in both precisions."""
    values: dict[str, Any] = {
        "name": name,
        "numel": 100,
        "dtype": "float16",
        "moved": 100,
        "swallowed": 0,
        "nan": 0,
        "inf": 0,
        "update": 1e-3,
        "spacing": 6e-5,
        "eps": None,
    }
    return ParameterUpdate(**(values | changes))


def report_on(*updates: ParameterUpdate, loss_scale: float = 1.0, **changes: Any) -> Report:
    """A scan with nothing wrong but what the updates say."""
    step = OptimizerStep("Adam", MAKES, loss_scale, updates, changes.pop("birth", None))
    own = {
        "environment": environment(mode="half", loss_scale=loss_scale),
        "passes": (reference(), candidate(mode="half", loss_scale=loss_scale, sites=SITES)),
        "optimizer_step": step,
    }
    return diagnose(trace(**(own | changes)))


def found(report: Report, code: str) -> list[Finding]:
    return [f for f in report.findings if f.code == code]


def test_a_step_that_arrives_is_clean() -> None:
    report = report_on(update(swallowed=10))
    assert report.verdict == "clean"
    assert [f.code for f in report.findings if f.code.startswith("AMP3")] == []


def test_more_than_half_of_all_elements_swallowed_is_the_verdict() -> None:
    report = report_on(update("a", swallowed=60), update("b", swallowed=41))
    assert report.verdict == "update-swallowed"
    assert report.sentence == (
        "UPDATES SWALLOWED. 50.5 % of the weight elements that Adam moves in FP32 stay as they are in FP16."
    )
    (finding,) = found(report, "AMP301")
    assert (finding.severity, finding.source) == ("error", MAKES)
    assert finding.message == (
        "50.5 % of the 200 weight elements that Adam moves in FP32 stay as they are in FP16: worst a with "
        "60.0 %, where updates of 1.0e-3 meet weights 6.0e-5 apart."
    )


def test_half_is_not_more_than_half() -> None:
    report = report_on(update("a", swallowed=100), update("b"))
    assert report.verdict == "clean"
    (finding,) = found(report, "AMP301")
    assert finding.severity == "warning"
    assert finding.message.startswith("1 parameter loses most of Adam's steps to FP16: worst a with 100.0 %")


def test_bfloat16_is_named_as_such() -> None:
    report = report_on(update(swallowed=90, dtype="bfloat16"))
    assert report.sentence.endswith("stay as they are in BF16.")


def test_fp32_parameters_next_to_half_ones_do_not_count() -> None:
    """An FP32 parameter loses nothing by storage; what it loses is FP32's own rounding."""
    report = report_on(update("a", swallowed=60), update("b", dtype="float32", moved=1000))
    assert report.verdict == "update-swallowed"


def test_nothing_that_moves_is_no_loss() -> None:
    assert report_on(update(moved=0, swallowed=0, update=None, spacing=None)).verdict == "clean"


def test_an_eps_below_the_format_that_destroys_weights_is_an_error() -> None:
    divides = birth("", "aten::addcdiv_", phase="optimizer", value="nan", reaches_loss=False, source=None)
    report = report_on(update(nan=3, inf=20, eps=1e-8), update("b", eps=1e-8), birth=divides)
    assert report.verdict == "update-swallowed"
    assert report.sentence == (
        "WEIGHTS DESTROYED by the optimizer. The first step of Adam leaves 23 weight elements non-finite in "
        "FP16; FP32 is fine."
    )
    assert found(report, "AMP301") == []
    (finding,) = found(report, "AMP303")
    assert (finding.severity, finding.source, finding.evidence["op"]) == ("error", MAKES, "aten::addcdiv_")
    assert finding.message == (
        "Adam's eps of 1.0e-8 is 0 in FP16, whose smallest number is 6.0e-8. The first step divides by 0 in "
        "addcdiv_ and leaves 23 weight elements non-finite, in w."
    )


def test_an_eps_below_the_format_that_did_no_harm_yet_is_a_warning() -> None:
    report = report_on(update(eps=1e-8))
    assert report.verdict == "clean"
    (finding,) = found(report, "AMP303")
    assert finding.severity == "warning"


def test_an_eps_flushes_up_to_half_of_the_smallest_number() -> None:
    assert found(report_on(update(eps=2.0**-25)), "AMP303") != []
    assert found(report_on(update(eps=2.0**-25 * 1.01)), "AMP303") == []
    assert found(report_on(update(eps=1e-8, dtype="bfloat16")), "AMP303") == []
    assert found(report_on(update(eps=0.0)), "AMP303") == []


def test_weights_destroyed_without_an_eps_to_blame() -> None:
    report = report_on(update(inf=2))
    assert report.verdict == "update-swallowed"
    (finding,) = found(report, "AMP301")
    assert (finding.severity, finding.message) == (
        "error",
        "The first step of Adam leaves 2 weight elements non-finite, in w; in FP32 all stay finite.",
    )


def test_a_loss_scale_and_half_parameters_need_a_scaler_that_refuses_them() -> None:
    (finding,) = found(report_on(update(), loss_scale=1024.0, passes=passes_with("float16")), "AMP302")
    assert finding.severity == "warning"
    assert finding.message == (
        "FP16 gradients of 1 parameter, and a loss scale of 1,024: GradScaler refuses to unscale them."
    )
    assert found(report_on(update(), passes=passes_with("float16")), "AMP302") == []
    assert found(report_on(update(), loss_scale=1024.0, passes=passes_with("bfloat16")), "AMP302") == []
    without = {"loss_scale": 1024.0, "passes": passes_with("float16"), "optimizer_step": None}
    assert found(report_on(update(), **without), "AMP302") == []


def passes_with(dtype: str) -> tuple[Pass, ...]:
    """A reference, and a candidate whose gradients are of this dtype, at both loss scales of these tests."""
    half = (parameter("w", dtype=dtype),)
    return (
        reference(),
        *(candidate(mode="half", loss_scale=s, sites=SITES, parameters=half) for s in (1.0, 1024.0)),
    )


def test_lost_gradients_come_before_lost_updates() -> None:
    gone = parameter("w", lost=90, relative_error=0.9)
    passes = (reference(), candidate(mode="half", loss_scale=1.0, sites=SITES, parameters=(gone,)))
    report = report_on(update(swallowed=100), passes=passes)
    assert report.verdict == "gradient-underflow"
    assert [f.severity for f in found(report, "AMP301")] == ["error"]


def test_an_optimizer_that_casts_inside_is_named_with_its_cast() -> None:
    step = OptimizerStep(
        "Muon", MAKES, 1.0, (update(dtype="float32", swallowed=75),), None, casts_to="float16"
    )
    report = report_on(optimizer_step=step)
    assert (report.verdict, report.sentence) == (
        "update-swallowed",
        "UPDATES SWALLOWED by the optimizer. Muon casts to FP16: 75.0 % of the weight elements that it moves "
        "without the cast stay as they are.",
    )
    (finding,) = found(report, "AMP301")
    assert finding.message == (
        "Muon casts to FP16 here, which rounds to zero. Of the 100 weight elements that it moves with this "
        "in FP32, 75.0 % stay as they are: w."
    )
    assert finding.remedy is not None and finding.remedy.startswith("Normalise before the cast")


def test_weights_that_the_cast_destroys_are_not_said_to_be_low_precision() -> None:
    step = OptimizerStep("Muon", MAKES, 1.0, (update(dtype="float32", nan=4),), None, casts_to="float16")
    report = report_on(optimizer_step=step)
    assert report.sentence == (
        "WEIGHTS DESTROYED by the optimizer. The first step of Muon leaves 4 weight elements non-finite by a "
        "cast to FP16; without it, the step is fine."
    )
    (finding,) = found(report, "AMP301")
    assert finding.message.endswith("in w; without the cast to FP16 all stay finite.")
