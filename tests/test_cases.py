"""The ground truth: every case of tests/cases gets the verdict, module, op and line of its answer key."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ampdoctor.diagnose.report import Report
from ampdoctor.load import load
from case_runner import Case, case_config, model_cases, run_case, run_config, warnings_of

VERDICTS = {
    "forward-overflow": "forward-overflow",
    "forward-underflow": "forward-underflow",
    "forward-nan-genuine": "forward-undefined",
    "backward-nan-genuine": "backward-undefined",
    "drift": "drift",
    "update-swallowed": "update-swallowed",
    "clean": "clean",
}
"""A case's class -> the verdict it must get."""

OUTLIERS = {
    "bn_poisoned_by_loud_clip": "forward-overflow",
    "cached_latents_with_nan": "bad-input",
    "one_empty_batch": "forward-undefined",
}
"""Cases of the class data-outlier: one overflows on one sample, one is NaN before anything runs, one divides
nothing by nothing."""

WITHOUT_BIRTH = ("drift", "update-swallowed")
"""Classes without a first bad op: everything is finite."""

CASES = model_cases()
FAULTY = [
    case
    for case in CASES
    if case.fails
    if case.slug in OUTLIERS or VERDICTS.get(case.kind, "clean") not in ("clean", *WITHOUT_BIRTH)
]
NOT_IN_THIS_TORCH = [case for case in CASES if not case.fails]
FINITE = [case for case in CASES if case.kind in WITHOUT_BIRTH]
HEALTHY = [case for case in CASES if case.clean]
OF_THE_SCALE = [case for case in CASES if case.kind in ("backward-overflow-scale", "gradient-underflow")]

# The class api-misuse is answered case by case: what is wrong there is how the parts are put together.


def params(cases: list[Case]) -> list[Any]:
    return [pytest.param(c, id=c.slug) for c in cases]


WITHOUT_EMULATION = [
    case
    for case in CASES
    if case.slug
    in (
        "clean_double_where",
        "focal_log_of_saturated_sigmoid",
        "mask_minus_1e9_raises",
        "pegasus_residual_add",
        "t5_ffn_wo",
        "var_rsqrt_tiny_eps",
        "where_exp_branch",
    )
]
"""A few that are quick in the CPU's own FP16."""


def verdict_of(case: Case) -> str:
    return OUTLIERS.get(case.slug) or VERDICTS[case.kind]


CLOSE_TO_THE_END = {"scalar_times_half": ["AMP103 "]}
"""AMP103 speaks of headroom, not of health: a healthy case that holds more than half of 65,504 is told so, by
a warning that fails no gate. Plain torch holds the 40,192 too (below); the note of its key expects 1e4."""


def named_lines(report: Report) -> list[str]:
    """The text of every source line that the report names as a place of a fault or as its root."""
    fault = report.first_fault
    sources = [finding.source for finding in report.findings]
    if fault is not None:
        sources += [fault.source, fault.root.source if fault.root else None]
    return [source.text for source in sources if source is not None]


def check(case: Case, report: Report, emulate: str) -> None:
    """Asserts that the report on a faulty case says what its key says."""
    assert report.verdict == verdict_of(case)
    fault = report.first_fault
    assert fault is not None
    if "bad_samples" in case.key:
        assert list(fault.samples or ()) == case.key["bad_samples"]
    if verdict_of(case) == "bad-input":
        return
    assert (
        fault.phase == (case.key.get("cuda_origin_phase") if emulate == "cuda" else None) or case.origin_phase
    )
    assert fault.module == case.expected("first_bad_module", emulate)
    if case.key["first_bad_op"]:
        assert fault.op == case.expected("first_bad_op", emulate)
    assert fault.fp32_also_fails == case.key["fp32_also_fails"]
    hint = case.key["line_hint"]
    if case.key.get("root_cause_differs"):
        event = case.key["measured"]["event_line"]
        assert any(hint in line or line == event for line in named_lines(report))
    else:
        assert fault.source is not None
        assert hint in fault.source.text


@pytest.mark.parametrize("case", params(FAULTY))
def test_a_faulty_case_gets_the_diagnosis_of_its_key(case: Case) -> None:
    check(case, run_case(case.slug), "cuda")


@pytest.mark.parametrize("case", params(NOT_IN_THIS_TORCH))
def test_a_case_that_does_not_fail_in_this_torch_is_left_in_peace(case: Case) -> None:
    """Since 2.14 the infinity is born as before, and a mask in backward takes it in: as in plain torch."""
    report = run_case(case.slug)
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    if "fails_below_torch" in case.key:
        assert any("absorbed" in finding.message for finding in report.findings)


@pytest.mark.parametrize("case", params(FINITE))
def test_a_finite_fault_is_found_at_its_line(case: Case) -> None:
    report = run_case(case.slug)
    assert report.verdict == verdict_of(case)
    assert any(case.key["line_hint"] in line for line in named_lines(report))


@pytest.mark.parametrize("case", params(HEALTHY))
def test_a_healthy_case_is_left_in_peace(case: Case) -> None:
    report = run_case(case.slug)
    assert (report.verdict, warnings_of(report)) == ("clean", CLOSE_TO_THE_END.get(case.slug, []))
    assert report.first_fault is None


@pytest.mark.parametrize("case", params(WITHOUT_EMULATION))
def test_the_same_diagnosis_without_emulation(case: Case) -> None:
    report = run_case(case.slug, emulate="none")
    if case.kind == "clean":
        assert (report.verdict, warnings_of(report)) == ("clean", CLOSE_TO_THE_END.get(case.slug, []))
    else:
        check(case, report, "none")


def test_the_batch_tensor_that_was_bad_from_the_start_is_named() -> None:
    report = run_case("cached_latents_with_nan")
    assert report.first_fault is not None
    assert "ctx" in report.first_fault.tensor


def without_window(case: Case) -> bool:
    """No loss scale of 1 and above works, by the key."""
    return bool(case.key.get("fails_at_scale_1") or case.key.get("window_empty"))


@pytest.mark.parametrize("case", params(OF_THE_SCALE))
def test_a_case_of_the_loss_scale_is_told_from_a_fault_at_any_scale(case: Case) -> None:
    report = run_case(case.slug)
    if case.kind == "gradient-underflow":
        assert report.verdict == "gradient-underflow"
        assert report.first_fault is None
        return
    assert report.verdict == ("no-workable-scale" if without_window(case) else "backward-overflow")
    if case.key.get("window_empty"):
        (finding,) = (f for f in report.findings if f.code == "AMP204")
        assert "loss scale of its own" in finding.remedy
        return
    fault = report.first_fault
    assert fault is not None
    assert fault.phase == "backward"
    assert fault.module == case.expected("first_bad_module", "cuda")
    assert fault.op == case.expected("first_bad_op", "cuda")


@pytest.mark.parametrize("case", params([*OF_THE_SCALE, *HEALTHY]))
def test_the_ceiling_of_the_loss_scale_is_that_of_the_key(case: Case) -> None:
    scales = run_case(case.slug).loss_scale
    highest = case.key["measured"]["max_finite_scale_log2"]  # scanned from 2^-8 to 2^24 in steps of 2
    assert scales.searched
    if highest is None:
        assert scales.ceiling is None
        assert scales.window is None
        return
    assert scales.ceiling is not None
    ceiling = math.log2(scales.ceiling)
    assert highest <= ceiling if highest == 24 else highest <= ceiling < highest + 2
    if without_window(case):
        assert scales.window is None
    else:
        assert scales.window is not None
        assert scales.verified


@pytest.mark.parametrize("case", params(HEALTHY))
def test_a_healthy_case_is_left_in_peace_at_the_recommended_scale(case: Case) -> None:
    config = case_config(case.slug, "cuda")
    recommended = run_config(config)[1].loss_scale.recommended
    precision = config.precision.model_copy(update={"loss_scale": recommended})
    report = run_config(
        config.model_copy(update={"precision": precision}).located(config.directory, case.slug)
    )[1]
    assert (report.verdict, warnings_of(report)) == ("clean", CLOSE_TO_THE_END.get(case.slug, []))


def test_what_is_close_to_the_end_is_so_in_plain_torch() -> None:
    config = case_config("scalar_times_half", "cuda")
    workload = load(config)
    with torch.autocast("cpu", dtype=torch.float16):
        product = workload.model.lin(workload.batches[0]["x"]) * torch.tensor(1e5)  # type: ignore[operator]
    assert (product.dtype, product.abs().max().item()) == (torch.float16, 40192.0)
