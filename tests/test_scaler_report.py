"""What a scaler's run is called, what is said about it, and how its curve is drawn: from hand-made runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ampdoctor.diagnose.scaler import judge_scaler
from ampdoctor.diagnose.scaler_report import ScalerReport
from ampdoctor.facts.scaler_policies import POLICIES, static
from ampdoctor.facts.trace import Birth
from ampdoctor.facts.training import PlainStep, PlainTraining, ScalerRun, ScalerSettings, StepRecord
from ampdoctor.render import SCALER as FORMATS
from ampdoctor.render.options import Options
from ampdoctor.render.scaler.curve import draw
from trace_builder import birth, environment, source

CAUSE = birth(
    "head", "aten::mm", phase="backward", forward_op="aten::addmm", source=source(40, "return self.head(x)")
)


def steps_of(
    ceilings: Sequence[int | None],
    init_scale: float = 65536.0,
    interval: int = 2000,
    batches: int = 1,
    cause: Birth | None = CAUSE,
) -> tuple[tuple[StepRecord, ...], float]:
    """What GradScaler does when step i overflows past 2^ceilings[i], and the scale after it."""
    scale, good, steps = init_scale, 0, []
    for step, ceiling in enumerate(ceilings):
        bad = ceiling is None or scale > 2.0**ceiling
        bad_parameters = ("head.weight",) if bad else ()
        steps.append(
            StepRecord(step, step % batches, 1.5, scale, bad, ceiling, bad_parameters, cause if bad else None)
        )
        good = 0 if bad else good + 1
        if bad:
            scale /= 2
        elif good == interval:
            scale, good = scale * 2, 0
    return tuple(steps), scale


def report_on(
    ceilings: Sequence[int | None],
    init_scale: float = 65536.0,
    interval: int = 2000,
    batches: int = 1,
    **changes: Any,
) -> ScalerReport:
    steps, final = steps_of(ceilings, init_scale, interval, batches)
    values: dict[str, Any] = {
        "environment": environment(batches=batches),
        "optimizer": "AdamW",
        "parameter_dtypes": ("float32",),
        "settings": ScalerSettings(init_scale, 2.0, 0.5, interval),
        "requested": len(ceilings),
        "steps": steps,
        "final_scale": final,
        "refusal": "",
        "broken_weights": (),
        "seed": 0,
        "seconds": 1.25,
        "interrupted": False,
    }
    return judge_scaler(ScalerRun(**(values | changes)))


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


# ---------------------------------------------------------------- the picture


def lines(ceilings: Sequence[int | None], width: int = 20, **changes: Any) -> list[str]:
    curve = draw(steps_of(ceilings, **changes)[0], width, unicode=False)
    return [f"{label}|{line.rstrip()}" for label, line in zip(curve.labels, curve.lines, strict=True)]


def test_the_curve_falls_to_its_level_under_a_dotted_threshold() -> None:
    assert lines([14] * 5) == [
        "65,536|----+",
        "32,768|    +---+",
        "16,384|........+-----------",
    ]


def test_the_curve_rises_step_by_step() -> None:
    assert lines([40] * 4, interval=1) == [
        "524,288|            +---",
        "262,144|        +---+",
        "131,072|    +---+",
        "65,536|----+",
    ]


def test_a_fall_by_several_powers_is_drawn_through() -> None:
    steps = steps_of([40, 40])[0]
    low = StepRecord(1, 0, 1.0, 8192.0, False, 40, (), None)
    curve = draw((steps[0], low), 2, unicode=True)
    assert curve.lines == ("─╮", " │", " │", " ╰")


def test_a_line_is_labelled_with_the_scale_it_draws() -> None:
    """From 1,000, no power of two, down to 500; and where 16 powers share 8 lines, the higher of each two."""
    steps = steps_of([8] * 2, init_scale=1000.0)[0]
    assert draw(steps, 2, unicode=False).labels == ("1,000", "500")
    many = steps_of([None] * 16, init_scale=2.0**15)[0]
    assert draw(many, 16, unicode=False).labels == tuple(f"{2 ** (15 - 2 * k):,}" for k in range(8))


def test_many_steps_share_a_column_and_a_skip_among_them_is_kept() -> None:
    curve = draw(steps_of([16] * 99 + [15])[0], 10, unicode=False)
    assert curve.lines == ("----------",)
    assert curve.skips == " " * 9 + "x"
    assert (curve.first, curve.last) == (0, 99)


def test_a_scale_of_zero_can_be_drawn() -> None:
    assert len(lines([None] * 200, width=60)) <= 12


def render(report: ScalerReport, **options: Any) -> str:
    return FORMATS["text"](report, Options(**options))


def test_the_text_at_80_columns() -> None:
    text = render(report_on([12] * 20), unicode=False)
    body = text.splitlines()
    assert max(map(len, body)) <= 80
    assert " SETTLES at 4,096. 4 of 20 steps are skipped on the way down from 65,536." in body
    start = next(i for i, line in enumerate(body) if line.startswith(" Loss scale"))
    assert body[start : start + 9] == [
        " Loss scale   -- loss scale   . highest that works",
        "    65,536 |---+",
        "    32,768 |   +--+",
        "    16,384 |      +--+",
        "     8,192 |         +--+",
        "     4,096 |............+-----------------------------------------------",
        "   skipped |xxxxxxxxxxxx",
        "      step  0                                                         19",
        "",
    ]
    assert " Skipped    steps 0 to 3 at 65,536 .. 8,192: inf from mm in head, backward of" in body
    assert "            addmm  model.py:40" in body
    assert "            non-finite gradient of head.weight" in body
    assert "  torch          65,536   2,000 steps         4     4,096" in body
    assert "  deepspeed      65,536   1,000 steps         5     4,096" in body


@pytest.mark.parametrize("ceilings", [[12] * 20, [None] * 300, [40], [-3] * 25, []])
def test_every_outcome_fits_and_needs_no_unicode(ceilings: list[int | None]) -> None:
    text = render(report_on(ceilings), unicode=False)
    assert text.isascii()
    assert "\\u" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_json_document() -> None:
    document = json.loads(FORMATS["json"](report_on([12] * 6), Options()))
    assert document["schema"] == "ampdoctor.scaler/1"
    assert (document["outcome"], document["level"], document["final_scale"]) == ("settles", 4096.0, 4096.0)
    assert document["skipped"] == {"at_start": 4, "later": 0, "at_any_scale": 0}
    assert document["highest_scale_for_all"] == 4096.0
    assert document["steps"][0] == {
        "step": 0,
        "batch": 0,
        "loss": 1.5,
        "scale": 65536.0,
        "skipped": True,
        "highest_finite_scale": 4096.0,
        "bad_parameters": ["head.weight"],
    }
    (group,) = document["skips"]
    assert (group["count"], group["cause"]["module"], group["cause"]["op"]) == (4, "head", "aten::mm")
    assert group["cause"]["source"]["line"] == 40
    assert [p["policy"] for p in document["policies"]] == list(POLICIES)
    assert document["policies"][0]["skipped"] == 4


def test_json_writes_numbers_that_are_none_as_words() -> None:
    steps = (StepRecord(0, 0, float("nan"), 65536.0, True, None, ("w",), None),)
    document = json.loads(FORMATS["json"](report_on([None], steps=steps), Options()))
    assert document["steps"][0]["loss"] == "nan"
    assert document["steps"][0]["highest_finite_scale"] is None
