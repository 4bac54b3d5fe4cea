"""A dynamic scaler: judged where it settles, and its ordinary back-off is no fault."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampdoctor import diagnose as diagnose_package
from ampdoctor import scan as scan_live
from ampdoctor.api.request import scale_of
from ampdoctor.config.loss_scale import DynamicScaler
from ampdoctor.config.schema import PrecisionSection
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.diagnose.report import Report
from ampdoctor.facts.environment import Settling
from ampdoctor.facts.trace import Trace
from ampdoctor.gate.evaluate import evaluate
from ampdoctor.gate.rules import GateRules
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.probe.scan import probe
from ampdoctor.render import FORMATS, Options
from case_runner import candidate, codes, scan, warnings_of


class Weight(nn.Module):
    """y = w x in FP16 with w = x = 1: the gradient of y, times the loss scale, is what a format must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        return out


def steep(slope: float, **plan: Any) -> tuple[Trace, Report]:
    """A loss whose gradient at y is ``slope``: FP16 holds slope * scale below 65,520."""

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).float().sum() * slope
        return loss

    return scan(Weight(), torch.ones(1, 1), step, **{"scaler": "dynamic", **plan})


def shown(report: Report, name: str) -> str:
    text: str = FORMATS[name](report, Options())
    return text


@pytest.mark.parametrize("scale", [2.0**-3, 0.3])
def test_a_scale_below_1_does_not_stop_the_search_for_those_that_work(scale: float) -> None:
    # 4 * 2^13 = 32,768 fits, 4 * 2^14 = 65,536 does not.
    _, report = steep(4.0, scaler=None, loss_scale=scale)
    assert report.verdict == "clean"
    assert (report.loss_scale.ceiling, report.loss_scale.window) == (2.0**13, (1.0, 2.0**12))


def test_the_scale_that_is_judged_is_where_the_scaler_settles() -> None:
    # 4 * 2^14 = 65,536 is past FP16's end, 4 * 2^13 = 32,768 is not.
    trace, report = steep(4.0)
    assert trace.settling == Settling(2.0**13, 3)
    assert candidate(trace).loss_scale == 2.0**13
    assert report.verdict == "clean"
    assert report.sentence == (
        "CLEAN. Nothing overflows at loss scale 8,192, where GradScaler settles after 3 skipped steps, "
        "and no gradient is lost."
    )
    scales = report.to_dict()["loss_scale"]
    assert (scales["configured"], scales["scaler"], scales["skips"], scales["settles_at"]) == (
        65536.0,
        "dynamic",
        3,
        8192.0,
    )
    assert scales["window"] == [1.0, 4096.0]


def test_the_skips_are_information() -> None:
    _, report = steep(4.0)
    assert warnings_of(report) == []
    (finding,) = [f for f in report.findings if not f.code.startswith("AMP9")]
    assert (finding.code, finding.severity, finding.module) == ("AMP205", "info", "")
    assert finding.message.startswith(
        "GradScaler skips 3 steps and settles at 2^13: above 8,192 the backward of _to_copy in "
    )
    assert finding.remedy == "Nothing; torch.amp.GradScaler(init_scale=4096) saves those steps."
    for name in ("text", "markdown", "html"):
        assert "GradScaler skips 3 steps and settles at 2^13" in " ".join(shown(report, name).split())
    assert evaluate(report, GateRules(scale_in_window=True)).gate.status == "passed"  # type: ignore[union-attr]


def test_a_fixed_scale_is_judged_as_it_stands() -> None:
    trace, report = steep(4.0, scaler="fixed")
    assert (trace.settling, report.verdict) == (None, "backward-overflow")
    scales = report.to_dict()["loss_scale"]
    assert (scales["scaler"], scales["skips"], scales["settles_at"]) == (None, None, None)


def test_nothing_is_skipped_where_the_first_scale_is_finite() -> None:
    trace, report = steep(4.0, loss_scale=1024.0)
    assert (trace.settling, report.verdict) == (Settling(1024.0, 0), "clean")
    assert codes(report) <= {"AMP901"}
    assert "GradScaler" not in shown(report, "text")


def test_at_the_first_scale_below_the_end_there_is_no_margin_to_keep() -> None:
    # 2^13 lies above the window, which keeps a bit free for a fixed scale: a scaler only halves it again.
    _, report = steep(4.0, loss_scale=8192.0)
    assert codes(report) <= {"AMP901"}
    _, report = steep(4.0, loss_scale=8192.0, scaler="fixed")
    assert "AMP205" in codes(report)


def test_a_start_between_powers_of_two_is_halved_too() -> None:
    # 4 * 100,000 / 4 = 100,000 overflows, 4 * 100,000 / 8 = 50,000 does not.
    trace, report = steep(4.0, loss_scale=100_000.0)
    assert (trace.settling, report.verdict) == (Settling(12_500.0, 3), "clean")


def test_every_batch_is_finite_where_it_settles() -> None:
    def step(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = (model(torch.ones_like(batch)).float() * batch).sum()
        return loss

    batches = tuple(torch.full((1, 1), slope) for slope in (4.0, 1.0, 64.0, 0.5))
    workload = Workload("slopes", Weight(), batches, step)
    trace = probe(workload, Plan(device="cpu", scaler="dynamic"))
    assert trace.settling == Settling(2.0**9, 7)  # 64 * 2^10 is the end
    assert [p.loss_scale for p in trace.passes if p.role == "candidate"] == [512.0] * 4
    report = diagnose(trace)
    assert (report.verdict, warnings_of(report)) == ("clean", [])


def test_a_scale_that_no_step_reaches_is_none() -> None:
    trace, report = steep(1e5)  # past FP16's end at scale 1
    assert (trace.settling, report.verdict) == (None, "no-workable-scale")
    assert (report.loss_scale.skips, report.loss_scale.settles_at) == (None, None)


def test_a_start_that_is_too_low_is_underflow() -> None:
    trace, report = steep(1e-9, loss_scale=1.0)  # below 2^-25
    assert trace.settling == Settling(1.0, 0)
    assert report.verdict == "gradient-underflow"
    assert {"AMP203", "AMP205"} <= codes(report)


def test_a_fault_of_the_forward_is_none_of_the_scaler_s() -> None:
    def step(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = (model(batch) * 70_000.0).float().sum()
        return loss

    trace, report = scan(Weight(), torch.ones(1, 1), step, scaler="dynamic")
    assert (trace.settling, report.verdict) == (None, "forward-overflow")
    assert report.loss_scale.configured == 65536.0


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).float().sum()
    return loss


def test_bf16_has_no_scaler_and_needs_none() -> None:
    report = scan_live(Weight(), torch.ones(1, 1), loss_of, precision="bfloat16", device="cpu")
    scales = report.loss_scale
    assert (scales.scaler, scales.configured, scales.skips, scales.settles_at) == ("none", 1.0, None, None)
    assert (scales.searched, scales.recommended, report.verdict) == (False, None, "clean")
    assert report.sentence == "CLEAN. Nothing overflows without a loss scale, and no gradient is lost."
    assert evaluate(report, GateRules(scale_in_window=True)).gate.status == "passed"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, (65536.0, "dynamic")),
        ({"mode": "half"}, (65536.0, "dynamic")),
        ({"loss_scale": {"dynamic": "2^10"}}, (1024.0, "dynamic")),
        ({"loss_scale": 1024}, (1024.0, "fixed")),
        ({"loss_scale": "2**17"}, (131072.0, "fixed")),
        ({"loss_scale": "2^-3"}, (0.125, "fixed")),
        ({"dtype": "bfloat16"}, (1.0, "none")),
        ({"dtype": "bfloat16", "mode": "half"}, (1.0, "none")),
        ({"dtype": "bfloat16", "loss_scale": 1024}, (1024.0, "fixed")),
        ({"dtype": "bfloat16", "loss_scale": {"dynamic": 1024}}, (1024.0, "dynamic")),
        ({"mode": "none"}, (1.0, "none")),
    ],
)
def test_what_a_config_asks_for(section: dict[str, Any], expected: tuple[float, str]) -> None:
    assert scale_of(PrecisionSection.model_validate(section)) == expected


def test_a_start_is_kept_as_a_section() -> None:
    section = PrecisionSection.model_validate({"loss_scale": {"dynamic": 8}})
    assert section.loss_scale == DynamicScaler(dynamic=8.0)


# ---------------------------------------------------------------- healthy models, with the default config


class Clip(nn.Module):
    """Two towers and a temperature of 100, as CLIP ends its training."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(16, 32), nn.Linear(12, 32)
        self.logit_scale = nn.Parameter(torch.tensor(100.0).log())

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        a = nn.functional.normalize(self.image(image), dim=-1)
        b = nn.functional.normalize(self.text(text), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


def contrastive(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(*batch)
    target = torch.arange(len(logits))
    both = (nn.functional.cross_entropy(each, target) for each in (logits, logits.t()))
    loss: Tensor = sum(both, torch.zeros(()))
    return loss


def ctc(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    frames, target = batch
    logs = model(frames).log_softmax(-1).transpose(0, 1)
    lengths = torch.full((len(frames),), frames.shape[1]), torch.full((len(target),), target.shape[1])
    # a sum over the batch, as recipes for speech have it
    return nn.functional.ctc_loss(logs, target, *lengths, reduction="sum")


def critic(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """WGAN with its gradient penalty, whose weight is 10."""
    real, fake = batch
    mixed = ((real + fake) / 2).requires_grad_()
    (slope,) = torch.autograd.grad(model(mixed).float().sum(), mixed, create_graph=True)
    penalty = (slope.float().norm(dim=1) - 1).square().mean()
    loss: Tensor = model(fake).float().mean() - model(real).float().mean() + 10 * penalty
    return loss


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.LeakyReLU(0.2), nn.Linear(32, outputs))


HEALTHY = {
    "clip": (Clip, lambda: (torch.randn(8, 16), torch.randn(8, 12)), contrastive),
    "ctc": (lambda: mlp(8, 12), lambda: (torch.randn(4, 24, 8), torch.randint(1, 12, (4, 6))), ctc),
    "wgan": (lambda: mlp(6, 1), lambda: (torch.randn(16, 6), torch.randn(16, 6) + 3), critic),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_is_clean_and_passes_the_gate(name: str, dtype: str) -> None:
    build, batch, step = HEALTHY[name]
    torch.manual_seed(0)
    report = scan_live(build(), batch(), step, precision=dtype, device="cpu")  # type: ignore[operator]
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert evaluate(report, GateRules(scale_in_window=True)).gate.status == "passed"  # type: ignore[union-attr]


# ---------------------------------------------------------------- what the report says of the search


def test_the_ends_of_the_window_that_were_run_are_told() -> None:
    _, report = steep(4.0)  # 2^0 .. 2^12: both were run to find it
    assert report.loss_scale.ends_run == (True, True)
    assert "run: the low end, 2^0, and the high end, 2^12" in shown(report, "text")
    # past 2^24 nothing is recommended, and so the end is not run
    _, report = steep(2.0**-12)
    assert report.loss_scale.window == (1.0, 2.0**26)
    assert report.loss_scale.ends_run == (True, False)
    assert "predicted: the high end, 2^26" in shown(report, "text")


def test_a_report_without_a_search_says_why() -> None:
    def detached(model: nn.Module, batch: Tensor) -> Tensor:
        return loss_of(model, batch).detach()

    def overflow(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = (model(batch) * 70_000.0).float().sum()
        return loss

    reasons = {
        step: scan(Weight(), torch.ones(1, 1), step, **plan)[1].loss_scale.not_searched
        for step, plan in ((detached, {}), (overflow, {}), (loss_of, {"scaler": "none", "loss_scale": 1.0}))
    }
    assert list(reasons.values()) == ["no-gradients", "fault-at-every-scale", "no-scale-needed"]
    _, report = scan(Weight(), torch.ones(1, 1), overflow)
    assert "other scales were not tried: every scale has the fault" in shown(report, "text")
    assert report.to_dict()["loss_scale"]["not_searched"] == "fault-at-every-scale"
    assert steep(4.0)[1].loss_scale.not_searched is None


def test_what_overflows_first_is_named_alike_by_both_findings() -> None:
    # At 2^20 the first cast of backward overflows; as the scale rises, what comes last does.
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loud, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
            nn.init.constant_(self.head.weight, 64.0)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.loud(x))
            return out

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).float().sum()
        return loss

    _, report = scan(Towers(), torch.ones(2, 4), step, loss_scale=2.0**20)
    by_code = {f.code: f for f in report.findings}
    first, window = by_code["AMP201"], by_code["AMP205"]
    # The gradient of loud's weights, 2 samples * 4 outputs * 64, times 2^7 is 2^16.
    limit = "bove 64 the backward of addmm in loud"
    assert limit in first.message and limit in window.message
    assert (first.module, first.op, first.source) == (window.module, window.op, window.source)


def test_an_infinity_that_is_selected_away_is_not_what_a_scale_too_high_overflows_by() -> None:
    class Selected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            huge = h * 1e6
            out: Tensor = self.b(torch.where(huge.abs() < 100, huge, h))
            return out

    torch.manual_seed(0)
    model, x = Selected(), torch.randn(6, 4)
    for loss_scale, verdict in ((1024.0, "clean"), (2.0**24, "backward-overflow")):
        trace, report = scan(model, x, loss_of, loss_scale=loss_scale)
        assert [b.site.op for b in trace.births if b.site and b.site.phase == "forward"] == ["aten::mul"]
        assert report.verdict == verdict
        assert report.loss_scale.window is not None


# ---------------------------------------------------------------- gradients too small for anyone


@pytest.mark.parametrize("slope", [1e-15, 1e-34])
@pytest.mark.parametrize(
    "plan", [{}, {"scaler": "fixed"}, {"dtype": "bfloat16", "scaler": "none", "loss_scale": 1.0}]
)
def test_what_vanishes_in_fp32_too_is_no_scale_s_fault(slope: float, plan: dict[str, Any]) -> None:
    _, report = steep(slope, **plan)  # below 2^-45 = 2.8e-14
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    if plan.get("dtype") is None:  # BF16 holds both numbers
        (finding,) = (f for f in report.findings if f.code == "AMP203")
        assert (finding.severity, finding.title) == ("info", "gradient vanishes in FP32 too")
        assert "no gradient is lost that FP32 would train with" in report.sentence


def test_what_is_small_and_trains_is_still_lost() -> None:
    _, report = steep(1e-12, loss_scale=1.0)
    assert report.verdict == "gradient-underflow"
    assert report.loss_scale.recommended == 2.0**24


def test_what_vanishes_is_small_beside_the_whole_model() -> None:
    # 1e-12 is lost where it is all there is, and vanishes beside a gradient of 100: 1e-14 < 2^-45 of it.
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loud, self.faint = Weight(), Weight()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.loud(x), self.faint(x)

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        loud, faint = model(batch)
        loss: Tensor = loud.float().sum() * 100 + faint.float().sum() * 1e-12
        return loss

    _, report = scan(Two(), torch.ones(1, 1), step, scaler="dynamic")
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert [f.module for f in report.findings if f.code == "AMP203"] == ["faint.fc"]


def test_no_remedy_has_dots_in_it() -> None:
    rules = Path(diagnose_package.__file__).parent
    for file in sorted(rules.rglob("*.py")):
        tree = ast.parse(file.read_text())
        pages = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        dotted = [n.value for n in texts if id(n) not in pages and ("..." in n.value or "…" in n.value)]
        assert not dotted, f"{file.name}: {dotted}"
