"""Cases whose remedy is known: the treatment is of that kind or cheaper; what is beyond cure is called that.

The search is held to a budget of passes.
"""

from __future__ import annotations

import functools

import pytest
import torch

from ampdoctor.diagnose.policy import Policy
from ampdoctor.load import load
from ampdoctor.remedy.plan import TreatmentPlan
from ampdoctor.remedy.prescribe import prescribe
from ampdoctor.remedy.prescription import Prescription
from case_runner import Case, case_config, model_cases, plan_of


def prescription(slug: str, budget: int = 40) -> Prescription:
    if not next(case for case in model_cases() if case.slug == slug).fails:
        pytest.skip("does not fail in this version of torch")
    config = case_config(slug, "cuda")
    return prescribe(load(config), plan_of(config), Policy(), budget)


ISLANDS = {
    "t5_ffn_wo": ("blocks.1.ff.wo",),
    "rmsnorm_square_half": ("norm2",),
    "mel_power_cast": ("frontend",),
    "encodec_ema": ("vq",),
}
"""Where the key's remedy is FP32 at a module, or nothing that a program can write."""


@pytest.mark.parametrize("slug", ISLANDS)
def test_modules_in_fp32(slug: str) -> None:
    best = prescription(slug).treatments[0]
    assert (best.kind, best.plan.fp32, best.plan.loss_fp32) == ("fp32", ISLANDS[slug], False)
    assert best.minimal


NUMBERS = {
    "mask_minus_1e9_raises": (-1e9, -65504.0),
    "minmax_distillation_eps": (1e-8, 1e-4),
    "f_normalize_zero_half": (1e-12, 1e-4),
}
"""Where the key's remedy is an eps or a mask's value: what stands there, and what FP16 can hold."""


@pytest.mark.parametrize("slug", NUMBERS)
def test_another_number_at_its_line(slug: str) -> None:
    best = prescription(slug).treatments[0]
    assert best.kind == "formulation"
    (change,) = best.plan.lines
    assert (change.constant, change.becomes) == NUMBERS[slug]


@pytest.mark.parametrize(
    "slug", ["mse_half_intermediate", "marginal_clamp_one_minus_eps", "target_cast_half"]
)
def test_the_loss_in_fp32_where_no_module_is_at_fault(slug: str) -> None:
    best = prescription(slug).treatments[0]
    assert (best.kind, best.plan) == ("fp32", TreatmentPlan(loss_fp32=True))


@pytest.mark.parametrize("slug", ["half_loss_default_scale", "masked_encoder_high_scale"])
def test_a_loss_scale_where_that_is_all(slug: str) -> None:
    (only,) = prescription(slug).treatments
    assert only.kind == "loss-scale"
    assert only.proof.window is not None and only.plan.loss_scale is not None
    assert only.proof.window[0] <= only.plan.loss_scale <= only.proof.window[1]


@pytest.mark.parametrize("slug", ["where_exp_branch", "masked_mse_nan_labels", "labels_all_ignored"])
def test_what_fp32_has_too_is_incurable(slug: str) -> None:
    found = prescription(slug)
    assert found.treatments == ()
    assert "FP32 fails as well" in found.incurable


OF_THE_SCALE = ("grad-scaler", "lower-scale", "raise-scale", "mean-reduction")
"""Remedies in the keys for which a loss scale is enough."""
DEARER = ("loss-scale", "fp32", "scale-per-part", "formulation", "bf16")
"""The kinds of treatment, from cheap to dear."""
IN_FP32 = ("fp32-island", "fp32-master")
"""Remedies in the keys that are modules in FP32; the others change what the code computes."""
NOT_CURED = {
    "muon_ns_half": "the optimizer casts inside: no change of the model reaches it",
}
BY_SCANS = {"weight_decay_lost_bf16": 60}
"""A fault that no short run shows: each trial is a whole scan, of several passes. The passes it may take."""
SICK = [case for case in model_cases() if case.kind != "clean" and case.fails]


@pytest.mark.parametrize("case", SICK, ids=lambda case: case.slug)
def test_every_case_is_cured_or_said_to_be_beyond_it(case: Case) -> None:
    found = prescription(case.slug, budget=60)
    kinds = [treatment.kind for treatment in found.treatments]
    if case.key["fp32_also_fails"] or case.slug in NOT_CURED:
        assert kinds == []
        assert found.incurable or found.verdict == "clean"
    elif case.key["remedy"] in OF_THE_SCALE:
        assert kinds == ["loss-scale"]
    else:
        assert kinds and not found.incurable
        key = "fp32" if case.key["remedy"] in IN_FP32 else "formulation"
        assert DEARER.index(kinds[0]) <= DEARER.index(key)
        assert found.runs <= BY_SCANS.get(case.slug, 40)


def test_a_stale_cache_is_cured_by_autocast_around_each_call_of_the_model() -> None:
    """The plan says ``loss_fp32``. In plain torch: a region takes its cache along when it ends."""
    case = load(case_config("ref_swap_stale_cache", "none"))
    model, batch = case.model, case.batches[0]
    exact = float(case.step(model, batch).detach())
    with torch.autocast("cpu", torch.float16):
        stale = float(case.step(model, batch).detach())
    inside = type(model).forward
    model.forward = torch.autocast("cpu", torch.float16)(functools.partial(inside, model))
    assert float(case.step(model, batch).detach()) == pytest.approx(exact, rel=0.01)
    assert stale != pytest.approx(exact, rel=0.2)
