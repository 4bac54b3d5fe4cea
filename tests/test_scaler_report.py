"""What a scaler's run is called, what is said about it, and how its curve is drawn: from hand-made runs."""

from __future__ import annotations

from collections.abc import Sequence

from ampdoctor.diagnose.scaler import judge_scaler
from ampdoctor.facts.scaler_policies import POLICIES, static
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.training import PlainStep, PlainTraining, StepRecord
from scaler_reports import render, report_on, steps_of
from trace_builder import birth, environment

# ---------------------------------------------------------------- outcomes


def test_it_settles_and_the_wasted_steps_are_counted() -> None:
    report = report_on([12] * 20)
    assert (report.outcome, report.level, report.at_start, report.later) == ("settles", 4096.0, 4, 0)
    assert report.sentence == ("SETTLES at 4,096. 4 of 20 steps are skipped on the way down from 65,536.")
    assert report.remedy == "Start there, and no step is wasted: torch.amp.GradScaler(init_scale=2.0**12)."


def test_a_level_that_was_grown_into_is_no_scale_to_start_at() -> None:
    report = report_on([12] * 4 + [14] * 6, init_scale=2.0**14, interval=4)  # falls to 2^12, grows to 2^13
    assert (report.outcome, report.level, report.at_start, report.later) == ("settles", 8192.0, 2, 0)
    assert report.sentence == (
        "SETTLES at 8,192. 2 of 10 steps are skipped on the way down from 16,384 to 4,096, from where it "
        "grows."
    )
    assert report.remedy == (
        "Start at 4,096, and no step is wasted on the way down: torch.amp.GradScaler(init_scale=2.0**12)."
    )


def test_a_level_that_the_first_step_does_not_bear_is_no_scale_to_start_at() -> None:
    report = report_on([10, 12, 12, 12], init_scale=2.0**13)
    assert (report.level, report.at_start) == (4096.0, 1)
    assert report.remedy == (
        "Start at 1,024, and no step is wasted on the way down: torch.amp.GradScaler(init_scale=2.0**10)."
    )


def test_steps_skipped_later_are_told_apart() -> None:
    report = report_on([14, 14, 14, 14, 12, 12, 12, 12])
    assert (report.at_start, report.later, report.level) == (2, 2, 4096.0)
    assert report.sentence.endswith("2 of 8 steps are skipped on the way down from 65,536, 2 later.")


def test_a_skip_in_the_middle_is_how_it_should_be() -> None:
    report = report_on([16, 16, 15, 16])
    assert (report.outcome, report.sentence) == (
        "settles",
        "SETTLES at 32,768. 1 of 4 steps is skipped along the way.",
    )
    assert report.remedy.startswith("Nothing to do")


def test_nothing_skipped_and_nothing_grown_is_steady() -> None:
    report = report_on([18, 19, 18])
    assert (report.outcome, report.level, report.remedy) == ("steady", 65536.0, "")
    assert report.sentence == "STEADY at 65,536. None of 3 steps is skipped; up to 262,144 none would be."


def test_it_rises() -> None:
    report = report_on([40] * 6, interval=2)
    assert report.outcome == "rising"
    assert (
        report.sentence == "RISING. None of 6 steps is skipped, and the scale grows from 65,536 to 524,288."
    )


def test_a_scale_that_nothing_limits_is_said_to_be_so() -> None:
    assert report_on([127] * 3).sentence.endswith("is skipped; even 2^32 would not overflow.")


def test_a_run_too_short_to_arrive_is_still_falling() -> None:
    report = report_on([5] * 4)
    assert (report.outcome, report.level) == ("still-falling", None)
    assert report.sentence == (
        "STILL FALLING. 4 of 4 steps are skipped on the way down from 65,536, and the scale is at 4,096."
    )
    assert "torch.amp.GradScaler(init_scale=2.0**5)" in report.remedy


def test_a_last_halving_that_reaches_the_level_is_not_falling_any_more() -> None:
    report = report_on([15])
    assert (report.outcome, report.run.final_scale) == ("settles", 32768.0)


def test_a_level_below_one_is_no_good_one() -> None:
    report = report_on([-3] * 25)
    assert (report.outcome, report.level) == ("settles-below-1", 0.125)
    assert report.sentence.startswith("SETTLES BELOW 1, at 2^-3.")


def test_steps_that_no_scale_cures_collapse_it() -> None:
    report = report_on([None] * 30)
    assert (report.outcome, report.hopeless, report.level) == ("collapses", 30, None)
    assert report.sentence == (
        "COLLAPSES. No loss scale makes any of 30 steps finite: 65,536 became 2^-14, and nothing was learned."
    )
    assert "No loss scale cures this fault" in report.remedy


def test_one_bad_batch_of_four_collapses_it_as_well() -> None:
    report = report_on([15, 15, None, 15] * 5, init_scale=1024.0, batches=4)
    assert report.outcome == "collapses"
    assert report.sentence == (
        "COLLAPSES. 5 of 20 steps are not finite at any loss scale, and each lowers it: 1,024 became 32."
    )


def test_one_bad_step_long_ago_does_not() -> None:
    report = report_on([15, None, *[15] * 18], init_scale=1024.0, batches=4)
    assert (report.outcome, report.hopeless) == ("settles", 1)
    assert report.remedy == (
        "1 step not finite at any scale, only batch 1: `ampdoctor scan CONFIG --after-steps 1` scans step 1 "
        "as it is then."
    )


def beside(not_finite: Sequence[int], steps: int, batches: int = 1) -> PlainTraining:
    return PlainTraining(tuple(PlainStep(i % batches, 1.0, i not in not_finite) for i in range(steps)))


def test_a_divergence_that_fp32_has_too_is_not_blamed_on_precision() -> None:
    report = report_on([16] * 10 + [None] * 5, beside=beside(range(11, 15), 15))
    assert (report.outcome, report.level) == ("diverges", None)
    assert report.sentence == (
        "DIVERGES, and so does FP32. From step 10 on no loss scale makes its steps finite. The same steps in "
        "FP32 are not finite from step 11 on: no matter of precision."
    )
    assert report.remedy.startswith("Lower the learning rate")
    assert "`ampdoctor scan CONFIG --after-steps 10` shows the step as it is then." in report.remedy
    assert report.to_dict()["fp32"]["diverges_at"] == 11


def test_weights_that_break_where_fp32_diverges_too() -> None:
    report = report_on([16] * 4, broken_weights=("w",), beside=beside(range(6, 9), 9))
    assert report.outcome == "diverges"
    assert "From step 3 on its weights are not finite." in report.sentence


def test_fp32_that_stays_finite_leaves_it_to_precision() -> None:
    report = report_on([16] * 10 + [None] * 5, beside=beside((), 15))
    assert (report.outcome, report.hopeless) == ("collapses", 5)
    assert report.remedy == (
        "No loss scale cures this fault. `ampdoctor scan CONFIG --after-steps 10` scans step 10 as it is "
        "then, and names what does."
    )


def test_a_bad_batch_is_named_and_is_no_divergence() -> None:
    """Batch 2 of 4, which is the last step's as well: no batch that FP32 bore before fails there."""
    ceilings = [None if step % 4 == 2 else 16 for step in range(11)]
    report = report_on(ceilings, batches=4, beside=beside((2, 6, 10), 11, batches=4))
    assert report.run.beside is not None and report.run.beside.diverges_at is None
    assert report.outcome == "collapses"
    assert report.remedy.startswith(
        "No loss scale cures this fault: only batch 2, in FP32 too. `ampdoctor scan"
    )
    (group,) = report.skips
    assert (group.first, group.last, group.count, group.batches) == (2, 10, 3, (2,))
    assert (group.in_a_row, group.at_any_scale, group.in_fp32_too) == (False, True, True)
    text = " ".join(render(report).split())
    assert "3 of steps 2 to 10, batch 2, at 65,536 .. 16,384: inf from mm in head" in text
    assert "at any scale, and in FP32 too" in text


def test_bad_steps_that_growth_makes_up_for_do_not() -> None:
    report = report_on([15, 15, 15, None] * 5, init_scale=1024.0, interval=2, batches=4)
    assert report.outcome == "settles"


def test_a_refusal_of_half_gradients_is_amp302() -> None:
    refusal = "Attempting to unscale FP16 gradients."
    report = report_on([], refusal=refusal, parameter_dtypes=("float16",))
    assert (report.outcome, report.replays) == ("refused", ())
    assert report.sentence == f"REFUSED. torch's GradScaler does not take these gradients: {refusal}"
    (finding,) = report.findings
    assert (finding.code, finding.severity, report.remedy) == ("AMP302", "error", finding.remedy)


def test_another_refusal_is_not() -> None:
    report = report_on([], refusal="not implemented for 'BFloat16'", parameter_dtypes=("bfloat16",))
    assert (report.outcome, report.findings) == ("refused", ())
    assert report.remedy == "BF16 has FP32's exponents and needs no loss scale: leave GradScaler out."


def test_destroyed_weights() -> None:
    report = report_on([16, 16], broken_weights=("fc.weight", "fc.bias"))
    assert (report.outcome, report.level) == ("breaks-weights", None)
    assert report.sentence == (
        "WEIGHTS BROKEN in step 1. GradScaler let it through, and it left fc.weight, fc.bias non-finite."
    )


def test_no_step_at_all() -> None:
    report = report_on([], interrupted=True)
    assert (report.outcome, report.level, report.ceiling) == ("not-measured", None, None)


# ---------------------------------------------------------------- notes, groups, replays


def test_a_growth_that_the_run_is_too_short_for_is_said() -> None:
    note = (
        "The scale grows after 2,000 steps without overflow, which 20 steps do not show: "
        "--growth-interval 20 does."
    )
    assert note in report_on([12] * 20).notes
    assert note not in report_on([12] * 20, interval=10).notes


def test_bfloat16_needs_no_scaler() -> None:
    report = report_on([127] * 3, environment=environment(dtype="bfloat16"))
    assert "BF16 has FP32's exponents: it needs no loss scale and no GradScaler." in report.notes


def test_skips_in_the_same_place_are_one_group() -> None:
    steps, final = steps_of([12] * 6)
    other = birth("tail", "aten::sum", phase="backward")
    changed = (steps[0], steps[1], *(s if not s.skipped else _with(s, other) for s in steps[2:]))
    report = report_on([12] * 6, steps=changed, final_scale=final)
    assert [(g.first, g.last, g.count, g.first_scale, g.last_scale) for g in report.skips] == [
        (0, 1, 2, 65536.0, 32768.0),
        (2, 3, 2, 16384.0, 8192.0),
    ]


def _with(step: StepRecord, cause: Birth) -> StepRecord:
    return StepRecord(
        step.step, step.batch, step.loss, step.scale, True, step.ceiling, step.bad_parameters, cause
    )


def test_policies_are_replayed_on_the_measured_thresholds() -> None:
    steps, final = steps_of([12] * 20)
    run = report_on([12] * 20).run
    report = judge_scaler(run, (POLICIES["torch"], POLICIES["keras"], static(1024.0)))
    found = [(r.policy.name, len(r.skipped), r.final_scale) for r in report.replays]
    assert found == [("torch", 4, final), ("keras", 3, 4096.0), ("static:1024", 0, 1024.0)]
    assert report.replays[0].scales == tuple(s.scale for s in steps)


def test_a_growth_interval_of_the_users_is_every_policys() -> None:
    report = judge_scaler(report_on([40] * 6).run, tuple(POLICIES.values()), growth_interval=3)
    assert {r.policy.growth_interval for r in report.replays} == {3}
    assert {r.final_scale / r.policy.init_scale for r in report.replays} == {4.0}
