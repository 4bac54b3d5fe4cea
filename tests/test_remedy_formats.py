"""The cheapest format per module: tables derived by hand, from range and from missing bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ampdoctor
from ampdoctor.cli.main import run as command
from ampdoctor.diagnose.policy import Policy
from ampdoctor.errors import ConfigError
from ampdoctor.load.workload import Workload
from ampdoctor.probe.passes.module_formats import formats_by_module, matches, rounded
from ampdoctor.probe.plan import ModuleFormats, Plan
from ampdoctor.remedy.formats import with_patterns
from ampdoctor.remedy.plan import TreatmentPlan, format_word
from ampdoctor.remedy.plan_file import plan_text, read_plan
from ampdoctor.remedy.prescribe import prescribe
from ampdoctor.remedy.prescription import Treatment
from probe_helpers import Calls, summed

ALL = ("fp8", "fp16", "bf16", "fp32")


class Scale(nn.Module):
    """x times a weight."""

    def __init__(self, *weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def formats_of(model: nn.Module, batch: object, allowed: tuple[str, ...] = ALL) -> Treatment | None:
    workload = Workload("test", model, (batch,), summed)
    found = prescribe(workload, Plan(device="cpu", mode="none", loss_scale=1.0), Policy(), formats=allowed)
    return next((t for t in found.treatments if t.kind == "formats"), None)


def table(treatment: Treatment | None) -> dict[str, tuple[str, str]]:
    assert treatment is not None
    return {f.path: (format_word(f.forward), format_word(f.gradient)) for f in treatment.plan.formats}


def powers(*exponents: int) -> Tensor:
    return torch.tensor([2.0**e for e in exponents])


def test_a_table_derived_by_hand() -> None:
    """Each branch has inputs of its own, all powers of two, so that rounding loses a value or nothing.

    narrow  2^0 .. 2^-8: 9 binades; E4M3 has 18 (2^8 .. 2^-9 by a scale of its own).
    wide    2^0 .. 2^-24: 25 binades; E5M2 has 32 (2^15 .. 2^-16).
    wider   2^10 .. 2^-24: 35 binades; FP16 has them (2^15 .. 2^-24), an 8-bit format has not.
    huge    2^20: 41 binades down to 2^-20, past FP16's end; BF16.
    fine    1 + 2^-9, of which 1 is taken off: what is left is 2^-9, and 9 mantissa bits are needed: FP16.
    finest  1 + 2^-12: 12 bits, more than FP16's 10: FP32.

    All gradients of outputs are 1; those of inputs are 1 (the weights), so E4M3 holds them.
    """

    def forward(m: Calls, x: dict[str, Tensor]) -> Tensor:
        parts = [getattr(m, name)(x[name]).sum() for name in ("narrow", "wide", "wider", "huge")]
        parts[3] = parts[3] * 2.0**-20
        parts[2] = parts[2] * 2.0**-10
        fine = (m.fine(x["fine"]) - 1.0).sum() * 2.0**9
        finest = (m.finest(x["finest"]) - 1.0).sum() * 2.0**12
        return torch.stack([*parts, fine, finest]).sum()

    batch = {
        "narrow": powers(*range(-8, 1)),
        "wide": powers(*range(-24, 1)),
        "wider": powers(*range(-24, 11)),
        "huge": powers(*range(-20, 21)),
        "fine": torch.tensor([1.0 + 2.0**-9]),
        "finest": torch.tensor([1.0 + 2.0**-12]),
    }
    treatment = formats_of(Calls(forward, **{name: Scale(1.0) for name in batch}), batch)
    found = {name: pair[0] for name, pair in table(treatment).items()}
    assert found == {
        "narrow": "e4m3", "wide": "e5m2", "wider": "fp16", "huge": "bf16", "fine": "fp16", "finest": "fp32",
    }  # fmt: skip
    assert treatment is not None
    assert treatment.proof.batches == 1
    assert treatment.proof.loss_error is not None and treatment.proof.loss_error <= 0.01


def test_the_gradient_has_a_format_apart() -> None:
    """Forward of ``spread`` is 1 everywhere. Its gradients are what ``tail``'s weights are: 2^0 .. 2^-24, 25
    binades, for which E5M2 is needed; so are ``tail``'s own values, whose gradients are 1 and these."""
    model = nn.Sequential(Scale(*[1.0] * 25), Scale(*[2.0**-e for e in range(25)]))
    assert table(formats_of(model, torch.ones(25))) == {"0": ("e4m3", "e5m2"), "1": ("e5m2", "e5m2")}


def test_only_what_is_allowed() -> None:
    model = nn.Sequential(Scale(1.0))
    assert table(formats_of(model, torch.ones(1), ("bf16",))) == {"0": ("bf16", "bf16")}
    lost = Calls(lambda m, x: (m.a(x) - 1.0).sum(), a=Scale(1.0))
    assert formats_of(lost, torch.tensor([1.0 + 2.0**-12]), ("fp8", "fp16", "bf16")) is None


def test_gradients_in_fp16_have_a_loss_scale() -> None:
    """The largest gradient is 1; 2^15 takes it to FP16's last binade, 2^14 leaves the margin of one."""
    treatment = formats_of(nn.Sequential(Scale(1.0)), torch.ones(1), ("fp16",))
    assert treatment is not None
    assert treatment.plan.loss_scale == 2.0**14
    assert treatment.proof.gradient_error == 0.0


@pytest.mark.parametrize(
    ("value", "fmt", "expected"),
    [
        (1.0 + 2.0**-4, "float8_e4m3fn", 1.0),  # a tie between 1 and 1.125: to even
        (1.0 + 2.0**-3, "float8_e4m3fn", 1.125),
        (1.0 + 2.0**-2, "float8_e5m2", 1.25),
        (1e30, "float8_e5m2", 1e30),  # by a scale of its own: within 2 mantissa bits
        (70000.0, "float16", float("inf")),  # no scale of its own
        (1.0 + 2.0**-12, "float32", 1.0 + 2.0**-12),
    ],
)
def test_rounded(value: float, fmt: str, expected: float) -> None:
    assert float(rounded(torch.tensor([value]), fmt)) == pytest.approx(
        expected, rel=0.13 if value == 1e30 else 0
    )


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2"])
def test_an_8_bit_tensor_is_scaled_to_the_end_of_its_range(fmt: str) -> None:
    for top in (448.0, 449.0, 57344.0, 2.0**-40, 2.0**120, 2.0**-126):
        found = rounded(torch.tensor([top, top * 2.0**-8, 0.0]), fmt)
        assert torch.isfinite(found).all()
        assert float(found[0]) == pytest.approx(top, rel=0.07)
        assert float(found[1]) == pytest.approx(top * 2.0**-8, rel=0.07)


def test_patterns() -> None:
    assert matches("blocks.*.mlp", "blocks.3.mlp.fc") and not matches("blocks.*.mlp", "blocks.3.norm")
    same = [ModuleFormats(f"blocks.{i}.fc", "float16", "float16") for i in range(3)]
    (merged,) = with_patterns(same)
    assert merged.path == "blocks.*.fc"
    other = ModuleFormats("blocks.3.fc", "float32", "float16")
    assert with_patterns([*same, other]) == (*same, other)
    model = nn.Sequential(nn.Sequential(Scale(1.0)), Scale(1.0))
    whole, inner = ModuleFormats("", "float16", "float16"), ModuleFormats("0", "bfloat16", "bfloat16")
    assert formats_by_module(model, [inner, whole]) == {"0.0": inner, "1": whole}


def test_a_plan_with_formats_is_kept_in_a_file_and_is_not_trained_with(tmp_path: Path) -> None:
    plan = TreatmentPlan(formats=(ModuleFormats("blocks.*.mlp", "float8_e4m3fn", "float8_e5m2"),))
    file = tmp_path / "plan.yaml"
    file.write_text(plan_text(plan))
    assert "blocks.*.mlp:\n    forward: e4m3\n    gradient: e5m2" in file.read_text()
    assert read_plan(file) == plan
    with pytest.raises(ConfigError, match="formats: nothing here trains"):
        ampdoctor.apply(nn.Linear(1, 1), plan)


@pytest.mark.parametrize(
    "entry", ["{a: e4m3}", "{a: {forward: e4m3}}", "{a: {forward: fp8, gradient: e5m2}}"]
)
def test_what_is_no_format_table(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(f"ampdoctor_plan: 1\nformats: {entry}\n")
    with pytest.raises(ConfigError, match=r"is not module paths, each with .forward, gradient"):
        read_plan(file)


@pytest.mark.parametrize(
    "key", ["scales: {1: 256}", "fp32: [1]", "formats: {1: {forward: e4m3, gradient: e5m2}}"]
)
def test_a_modules_name_that_yaml_reads_as_a_number_asks_for_quotes(tmp_path: Path, key: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(f"ampdoctor_plan: 1\n{key}\n")
    with pytest.raises(ConfigError) as raised:
        read_plan(file)
    assert raised.value.hint == 'put the module\'s name in quotes: "1"'


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    samples = Path(__file__).parent.parent / "sample_configs"
    words = ["prescribe", str(samples / "scale_too_high.yaml"), "-q", "--formats", "bf16,fp32"]
    assert command(words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Format forward gradient" in out and "bf16 bf16" in out
    assert "The table of formats was run on every batch, rounding in FP32." in out
    assert command([*words[:-1], "fp12"]) == 2
    assert "--formats: 'fp12' is none of fp8, fp16, bf16, fp32" in capsys.readouterr().err
