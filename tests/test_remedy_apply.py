"""Taking the medicine: a model follows a plan in its user's own training; pasted lines do the same."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ampdoctor
from ampdoctor.cli.main import run
from ampdoctor.errors import ConfigError
from ampdoctor.probe.plan import LineChange
from ampdoctor.remedy.code import code_of
from ampdoctor.remedy.plan import TreatmentPlan
from ampdoctor.remedy.plan_file import plan_text, read_plan

SAMPLE = Path(__file__).parent.parent / "sample_configs" / "t5_ffn_overflow.yaml"
WO = TreatmentPlan(fp32=("1",))


def model() -> nn.Sequential:
    """256 and 512: 131,072, past FP16's 65,504."""
    layers = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for layer, weight in zip(layers, (256.0, 512.0), strict=True):
        nn.init.constant_(layer.weight, weight)
    return layers


def output(m: nn.Module) -> float:
    with torch.autocast("cpu", torch.float16):
        return float(m(torch.ones(1, 1)).detach())


def test_a_model_follows_the_plan_until_it_is_removed() -> None:
    m = model()
    before, kinds = m.state_dict(), [type(layer) for layer in m]
    with ampdoctor.apply(m, WO):
        assert output(m) == 131072.0
        assert list(m.state_dict()) == list(before)
        assert isinstance(m[1], nn.Linear)
    assert output(m) == float("inf")
    assert [type(layer) for layer in m] == kinds


def test_the_output_is_cast_back_where_the_plan_says_so() -> None:
    m = model()
    with ampdoctor.apply(m, TreatmentPlan(fp32=("1",), output="cast")):
        assert output(m) == float("inf")


def test_a_copy_of_the_model_follows_it_by_itself() -> None:
    m = model()
    with ampdoctor.apply(m, WO):
        other = copy.deepcopy(m)
        with torch.no_grad():
            other[1].weight.fill_(1024.0)
        assert (output(m), output(other)) == (131072.0, 262144.0)


def test_it_is_followed_in_a_recomputed_forward() -> None:
    m = model()
    with ampdoctor.apply(m, WO):
        with torch.autocast("cpu", torch.float16):
            y = checkpoint(m, torch.ones(1, 1), use_reentrant=False)
        y.sum().backward()
    assert float(m[1].weight.grad) == 256.0
    assert float(m[0].weight.grad) == 512.0


def test_a_compiled_model_has_no_graph_break_of_ours() -> None:
    m = model()
    with ampdoctor.apply(m, WO):
        compiled = torch.compile(m, backend="eager", fullgraph=True)
        assert output(compiled) == 131072.0


def test_a_module_that_is_not_there_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="no module 'heda'") as error:
        ampdoctor.apply(nn.ModuleDict({"head": nn.Linear(1, 1)}), TreatmentPlan(fp32=("heda",)))
    assert error.value.hint == "did you mean head?"


def test_weights_in_half_are_refused() -> None:
    with pytest.raises(ConfigError, match="holds weight in low precision"):
        ampdoctor.apply(model().half(), WO)


def test_a_line_to_edit_is_refused_by_name() -> None:
    plan = TreatmentPlan(lines=(LineChange("model.py", 47, 1e-8, 1e-4),))
    with pytest.raises(ConfigError, match=r"lines: model.py:47 is to be edited"):
        ampdoctor.apply(model(), plan)
    assert "# edit model.py:47: 0.0001" in code_of(plan, "float16")


def test_the_scaler_starts_from_the_plans_scale() -> None:
    handle = ampdoctor.apply(model(), TreatmentPlan(loss_scale=4096.0))
    scaler = handle.scaler()
    scaler.scale(torch.ones(()))
    assert scaler.get_scale() == 4096.0
    assert not ampdoctor.apply(model(), TreatmentPlan(dtype="bfloat16")).scaler().is_enabled()


class Towers(nn.Module):
    """Two weights of 1, read by one loss: 2^14 of the one, 2^-24 of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.loud = nn.Linear(1, 1, bias=False)
        self.faint = nn.Linear(1, 1, bias=False)
        for tower in (self.loud, self.faint):
            nn.init.ones_(tower.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loud(x).float() * 2.0**14 + self.faint(x).float() * 2.0**-24


def tower_gradients(m: nn.Module, scale: float = 1.0) -> tuple[float, float]:
    """Unscaled: (loud, faint)."""
    with torch.autocast("cpu", torch.float16):
        loss = m(torch.full((1, 1), 0.25)).sum()
    m.zero_grad()
    (loss * scale).backward()
    return float(m.loud.weight.grad) / scale, float(m.faint.weight.grad) / scale


APART = TreatmentPlan(loss_scale=2.0, scales={"faint": 2.0**20})
"""2^15 and 2^-3 come in: both fit. At one scale for both 2^-24 * 0.25 is zero up to 2, 2^14 inf from 4 on."""


def test_a_scale_of_its_own_leaves_gradients_as_fp32_has_them() -> None:
    m = Towers()
    assert tower_gradients(m, 2.0) == (2.0**12, 0.0)
    with ampdoctor.apply(m, APART):
        assert tower_gradients(m, 2.0) == (2.0**12, 2.0**-26)
        assert tower_gradients(copy.deepcopy(m), 2.0) == (2.0**12, 2.0**-26)
        assert list(m.state_dict()) == ["loud.weight", "faint.weight"]
    assert tower_gradients(m, 2.0) == (2.0**12, 0.0)
    assert not m.faint.weight._backward_hooks and not m.faint._forward_pre_hooks


def test_the_factor_is_divided_out_where_the_gradient_leaves_the_part() -> None:
    m = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for layer in m:
        nn.init.constant_(layer.weight, 0.5)
    with ampdoctor.apply(m, TreatmentPlan(scales={"1": 256.0})):
        m(torch.ones(1, 1)).sum().backward()
    assert [float(layer.weight.grad) for layer in m] == [0.5, 0.5]


def test_a_part_that_shares_a_weight_is_refused() -> None:
    m = Towers()
    m.faint.weight = m.loud.weight
    with pytest.raises(ConfigError, match="faint shares a parameter with a module outside it"):
        ampdoctor.apply(m, APART)


def test_the_lines_to_paste_scale_apart_too() -> None:
    m = Towers()
    exec(code_of(APART, "float16"), {"model": m})
    assert tower_gradients(m, 2.0) == (2.0**12, 2.0**-26)


@pytest.mark.parametrize("output_", ["fp32", "cast"])
def test_the_lines_to_paste_do_what_the_plan_does(output_: str) -> None:
    plan = TreatmentPlan(fp32=("1",), output=output_, loss_scale=4096.0)  # type: ignore[arg-type]
    m, applied = model(), model()
    names = {"model": m}
    exec(code_of(plan, "float16"), names)
    with ampdoctor.apply(applied, plan):
        assert output(m) == output(applied)
    scaler = names["scaler"]
    assert isinstance(scaler, torch.amp.GradScaler)
    scaler.scale(torch.ones(()))
    assert scaler.get_scale() == 4096.0


@pytest.mark.parametrize(
    "plan",
    [
        TreatmentPlan(),
        TreatmentPlan(loss_scale=0.5),
        TreatmentPlan(loss_scale=4096.0, fp32=("blocks.1.ff.wo", ""), output="cast", loss_fp32=True),
        TreatmentPlan(dtype="bfloat16"),
        TreatmentPlan(lines=(LineChange("model.py", 47, 1e-8, 1e-4), LineChange("model.py", 48))),
        TreatmentPlan(loss_scale=2.0, scales={"text_head": 256.0, "0": 2.0**-14}),
    ],
)
def test_a_plan_survives_its_file(plan: TreatmentPlan, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(plan_text(plan))
    assert read_plan(tmp_path / "plan.yaml") == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp32: [a]", "is not a plan"),
        ("ampdoctor_plan: 2", "reads version 1"),
        ("ampdoctor_plan: 1\nfp23: [a]", "a plan has no key 'fp23'"),
        ("ampdoctor_plan: 1\nfp32: a", "fp32: 'a' is not a list of module paths"),
        ("ampdoctor_plan: 1\nloss_scale: 0", "loss_scale: 0 is not a number above 0"),
        ("ampdoctor_plan: 1\nloss_scale: true", "loss_scale: True is not a number above 0"),
        (
            "ampdoctor_plan: 1\nscales: [a]",
            r"scales: \['a'\] is not module paths, each with a number above 0",
        ),
        ("ampdoctor_plan: 1\nscales: {a: -1}", "is not module paths, each with a number above 0"),
        ("ampdoctor_plan: 1\nlines: [{file: a.py}]", "is not a list of {file, line}"),
        ("[", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_plan(tmp_path / "plan.yaml")


def test_without_a_treatment_no_plan_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, healthy = tmp_path / "plan.yaml", SAMPLE.with_name("healthy.yaml")
    assert run(["prescribe", str(healthy), "-q", "--save", str(plan), "--set", "precision.device=cpu"]) == 0
    seen = capsys.readouterr()
    assert "There is nothing to cure." in seen.out
    assert seen.err == "there is no treatment to write down\n"
    assert not plan.exists()


def test_prescribe_save_and_scan_with_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    assert run(["prescribe", str(SAMPLE), "-q", "--save", str(plan), "--set", "precision.device=cpu"]) == 0
    assert "blocks.1.ff.wo in FP32" in capsys.readouterr().out
    assert read_plan(plan) == TreatmentPlan(fp32=("blocks.1.ff.wo",))
    assert run(["scan", str(SAMPLE), "-q", "--plan", str(plan), "--set", "precision.device=cpu"]) == 0
    assert " CLEAN." in capsys.readouterr().out
    assert run(["gate", str(SAMPLE), "-q", "--plan", str(plan), "--set", "precision.device=cpu"]) == 0
    assert run(["gate", str(SAMPLE), "-q", "--set", "precision.device=cpu"]) == 1
