"""The search for FP32 islands: on models with a known answer, the known set and no other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampdoctor.diagnose.policy import Policy
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.remedy.ddmin import ddmin
from ampdoctor.remedy.plan import TreatmentPlan
from ampdoctor.remedy.prescribe import prescribe
from ampdoctor.remedy.prescription import Prescription, Treatment
from probe_helpers import Calls, summed


def found(model: nn.Module, *batches: Any, loss: Any = summed, **plan: Any) -> Prescription:
    given = batches or (torch.ones(1, 1),)
    chosen = Plan(**{"device": "cpu", "loss_scale": 1.0, **plan})
    return prescribe(Workload("test", model, given, loss), chosen, Policy())


def islands(prescription: Prescription) -> Treatment:
    (treatment,) = (t for t in prescription.treatments if t.kind == "fp32")
    assert treatment.minimal in (True, None)
    return treatment


def linear(weight: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def peak(*weights: float) -> nn.Sequential:
    """Products of one number: 256 * 512 is past FP16's 65,504, and so on."""
    return nn.Sequential(*(linear(weight) for weight in weights))


# ---------------------------------------------------------------- delta debugging


def needs(*culprits: int) -> tuple[Any, list[int]]:
    """A test that holds where all culprits are in, and the sizes it was asked about."""
    asked: list[int] = []

    def holds(items: Sequence[int]) -> bool:
        asked.append(len(items))
        return set(culprits) <= set(items)

    return holds, asked


@pytest.mark.parametrize("culprits", [(7,), (3, 90), (0, 1, 99), tuple(range(100)), ()])
def test_ddmin_finds_exactly_the_culprits(culprits: tuple[int, ...]) -> None:
    holds, _ = needs(*culprits)
    assert ddmin(range(100), holds) == list(culprits)


@pytest.mark.parametrize("size", [16, 256, 4096])
def test_one_culprit_takes_logarithmically_many_runs(size: int) -> None:
    for culprit in (0, size // 3, size - 1):
        holds, asked = needs(culprit)
        assert ddmin(range(size), holds) == [culprit]
        assert len(asked) <= 2 * math.log2(size) + 1


def test_where_there_is_a_choice_what_comes_first_is_kept() -> None:
    assert ddmin(range(8), lambda items: 2 in items or 6 in items) == [2]


# ---------------------------------------------------------------- models with a known answer


def test_one_bad_layer_in_forty() -> None:
    weights = [1.0] * 40
    weights[29], weights[30] = 131072.0, 2.0**-17  # FP16 holds neither the weight nor what comes of it
    treatment = islands(prescription := found(peak(*weights)))
    assert treatment.plan == TreatmentPlan(fp32=("29", "30"), output="fp32")
    assert prescription.runs <= 2 * 2 * math.log2(40) + 20


def test_two_that_must_go_together() -> None:
    model = peak(256.0, 512.0, 2.0**-10, 1.0)  # 131,072 is made in 1 and must be taken in by 2
    treatment = islands(found(model))
    assert treatment.plan.fp32 == ("1", "2")
    assert treatment.minimal
    assert treatment.proof.loss_error == 0.0


def test_the_obvious_culprit_is_enough_where_its_output_stays_wide() -> None:
    treatment = islands(found(peak(256.0, 512.0)))
    assert treatment.plan == TreatmentPlan(fp32=("1",), output="fp32")
    assert treatment.proof.batches == 1


def test_output_is_cast_back_where_the_next_layer_is_half() -> None:
    """256 * 512 is past the end inside the block, and 128 after its division; the next layer is half."""

    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear(512.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * 2.0**-10

    model = Calls(
        lambda m, x: m.last(m.block(m.first(x))), first=linear(256.0), block=Squares(), last=linear(1)
    )
    plan = islands(found(model, mode="half")).plan
    assert (plan.fp32, plan.output) == (("block",), "cast")
    # Under autocast the next layer takes FP32 as well, so that less is enough: 2^17 itself stays wide.
    plan = islands(found(model)).plan
    assert (plan.fp32, plan.output) == (("block.inner",), "fp32")


class Residual(nn.Module):
    """x + x."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_a_residual_stream_stays_wide_as_a_whole() -> None:
    blocks = [Residual() for _ in range(6)]
    model = nn.Sequential(linear(8192.0), *blocks, linear(2.0**-12))
    treatment = islands(found(model))
    # 2^13, doubled six times: block 3 makes 2^16, so that the stream must be FP32 from there on or before,
    # which takes one module; 4, 5, 6 and 7 then take in what FP16 does not hold.
    tops = [path.split(".")[0] for path in treatment.plan.fp32]
    assert tops[1:] == ["4", "5", "6", "7"]
    assert tops[0] in ("0", "1", "2", "3")


def test_two_towers_whose_windows_do_not_meet() -> None:
    """2^14 comes in at one tower and 2^-28 at the other: one fits up to 2, the other from 2^4 on."""

    def forward(m: Calls, x: Tensor) -> Tensor:
        h = m.trunk(x)
        return m.loud(h).float() * 2.0**14 + m.faint(h).float() * 2.0**-28

    towers = {name: nn.Sequential(linear(1.0), linear(1.0)) for name in ("loud", "faint")}
    prescription = found(Calls(forward, trunk=linear(1.0), **towers))
    treatment = prescription.treatments[0]
    # 2^14 fits twice over, less a bit of margin: scale 1. The faint tower's own ceiling is 2^43, and no
    # scale beyond 2^24 is recommended. The trunk hears the loud tower alone, and is left alone.
    assert (treatment.kind, treatment.plan.loss_scale, treatment.plan.scales) == (
        "scale-per-part", 1.0, {"faint": 2.0**24},
    )  # fmt: skip
    assert treatment.minimal
    assert treatment.proof.gradient_error == 0.0
    assert treatment.cost.flops == 0.0


def test_the_loss_alone() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)  # 512 in FP16; its square is 2^18
        return (y * y).mean() / 1024

    treatment = islands(found(peak(512.0), loss=loss))
    assert treatment.plan == TreatmentPlan(loss_fp32=True)
    assert treatment.cost.flops == 0.0


def test_where_only_the_gradient_overflows_a_scale_is_enough() -> None:
    prescription = found(peak(1.0, 1.0), loss_scale=2.0**17)
    (treatment,) = prescription.treatments
    assert treatment.kind == "loss-scale"
    assert treatment.plan.loss_scale is not None and treatment.plan.loss_scale < 2.0**16
    assert prescription.runs == 0  # the scan's own search for scales has all that is needed


def test_a_module_inside_autocast_of_the_models_own() -> None:
    def forward(m: Calls, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return m.b(m.a(x))

    treatment = islands(found(Calls(forward, a=linear(256.0), b=linear(512.0)), mode="none"))
    assert treatment.plan.fp32 == ("b",)


def test_the_remedy_of_a_finding_is_the_treatment_that_takes_it_away() -> None:
    """FP16 overflows in 1. What is said of it in a scan is advice; here the island was run, and is named."""
    prescription = found(peak(256.0, 512.0))
    (finding,) = (f for f in prescription.findings if f.severity == "error")
    assert (finding.code, finding.module) == ("AMP101", "1")
    assert finding.remedy == "Proven by a scan: 1 in FP32."


def test_the_remedy_of_a_finding_without_a_treatment_is_the_rules() -> None:
    prescription = found(Calls(lambda m, x: torch.log(m.a(x)), a=linear(-1.0)))
    assert prescription.findings
    assert not any("Proven" in finding.remedy for finding in prescription.findings)


def test_what_fails_in_fp32_too_is_called_incurable() -> None:
    model = Calls(lambda m, x: torch.log(m.a(x)), a=linear(-1.0))
    prescription = found(model)
    assert prescription.treatments == ()
    assert "FP32 fails as well" in prescription.incurable
    assert "torch.log(m.a(x))" in prescription.incurable
    assert prescription.runs == 0


def test_a_healthy_model_needs_nothing() -> None:
    prescription = found(peak(1.0, 2.0))
    assert (prescription.verdict, prescription.treatments, prescription.incurable) == ("clean", (), "")


def test_a_spent_budget_is_said() -> None:
    model = peak(*[1.0] * 10, 256.0, 512.0, 2.0**-10, *[1.0] * 10)
    chosen = Plan(device="cpu", loss_scale=1.0)
    prescription = prescribe(Workload("test", model, (torch.ones(1, 1),), summed), chosen, Policy(), budget=3)
    assert any("no end within 3 passes" in attempt.why for attempt in prescription.tried)
    assert {t.kind for t in prescription.treatments} == {"bf16"}


def test_the_search_leaves_the_model_as_it_was() -> None:
    model = peak(256.0, 512.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    found(model)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
