"""``ampdoctor.scan``: a model at hand gives the report that a config gives, and stays as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ampdoctor
from ampdoctor.api.scan import scan
from ampdoctor.config import load_config
from ampdoctor.diagnose import report as diagnosis
from ampdoctor.render import FORMATS, Options
from case_runner import assert_same, codes, run_config, snapshot

SAMPLES = Path(__file__).parent.parent / "sample_configs"


class Times(nn.Module):
    """One weight, times its input: every value in a test is a product anyone can check."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.fc.weight, weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)  # type: ignore[no-any-return]


X = torch.full((4, 1), 256.0)


def mean(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).float().mean()  # type: ignore[no-any-return]


def on_cpu(model: nn.Module, batch: Any, loss_fn: Any = mean, **options: Any) -> ampdoctor.Report:
    return scan(model, batch, loss_fn, **{"device": "cpu", "loss_scale": 1.0, **options})


# ---------------------------------------------------------------- the package


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import ampdoctor, sys; ampdoctor.AmpDoctorError, ampdoctor.Finding, ampdoctor.__version__;"
        "dir(ampdoctor); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    assert ampdoctor.scan is scan
    assert [name for name in ampdoctor.__all__ if getattr(ampdoctor, name) is None] == []
    assert set(ampdoctor.__all__) <= set(dir(ampdoctor))
    with pytest.raises(AttributeError, match="no attribute 'scann'"):
        ampdoctor.scann  # noqa: B018


# ---------------------------------------------------------------- the report


def test_an_overflow_is_found_where_it_is_born() -> None:
    report = on_cpu(Times(256.0), X)
    assert report.verdict == "forward-overflow"
    first = report.findings[0]
    assert (first.code, first.severity, first.module) == ("AMP101", "error", "fc")
    fault = report.first_fault
    assert fault is not None
    assert (fault.module, fault.exact_value, fault.count) == ("fc", 65536.0, 4)


def test_a_model_within_the_range_is_clean() -> None:
    report = on_cpu(Times(64.0), X)  # 16,384: almost 2 bits below the end
    assert report.verdict == "clean"
    assert report.loss_scale.configured == 1.0


def test_it_is_the_report_that_the_config_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(SAMPLES / "t5_ffn_overflow.yaml", ["precision.device=cpu"])
    _, expected = run_config(config)
    monkeypatch.syspath_prepend(str(SAMPLES / "models"))
    t5 = __import__("t5")
    torch.manual_seed(config.seed)
    model = t5.build_model()
    torch.manual_seed(config.seed)
    report = scan(model, t5.build_batch(), t5.compute_loss, device="cpu", seed=config.seed)
    assert isinstance(report, diagnosis.Report)
    ours, theirs = report.to_dict(), expected.to_dict()
    for part in ("verdict", "first_fault", "layers", "parameters", "loss_scale", "findings", "losses"):
        assert ours[part] == theirs[part], part


def test_it_holds_every_field_of_the_diagnosis() -> None:
    report = on_cpu(Times(256.0), X)
    _, plain = run_config(load_config(SAMPLES / "healthy.yaml", ["precision.device=cpu"]))
    copy = ampdoctor.Report.of(plain)
    assert {f.name: getattr(copy, f.name) for f in fields(plain)} == {
        f.name: getattr(plain, f.name) for f in fields(plain)
    }
    assert report != copy


def test_printed_it_is_the_terminal_report() -> None:
    report = on_cpu(Times(256.0), X)
    assert str(report) + "\n" == FORMATS["text"](report, Options(base=str(Path.cwd())))
    assert "OVERFLOW in forward. fc leaves the FP16 range" in str(report)
    assert "\x1b" not in str(report)
    assert repr(report) == "<Report forward-overflow: 1 error, 1 info>"


def test_as_json_it_is_the_documented_document() -> None:
    report = on_cpu(Times(256.0), X)
    document = json.loads(report.to_json())
    assert document["schema"] == "ampdoctor.report/1"
    assert document["first_fault"]["module"] == "fc"
    assert document == json.loads(json.dumps(report.to_dict()))


def test_a_notebook_shows_markup_and_not_the_models_own() -> None:
    model = nn.Sequential()
    model.add_module("<script>alert(1)</script>", Times(256.0))
    report = on_cpu(model, X)
    html = report._repr_html_()
    assert report.first_fault is not None
    assert report.first_fault.module == "<script>alert(1)</script>.fc"
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "<html" not in html


# ---------------------------------------------------------------- the loss


class WithLoss(Times):
    def forward(self, x: Tensor) -> Any:
        return {"loss": super().forward(x).float().mean()}


def test_without_a_loss_it_is_the_one_in_the_output() -> None:
    report = on_cpu(WithLoss(256.0), X, None)
    assert (report.verdict, report.environment.forward_only) == ("forward-overflow", False)


def test_a_loss_of_torchs_by_name() -> None:
    report = on_cpu(Times(1.0), (X, X), "mse")
    assert [(row.candidate, row.reference) for row in report.losses] == [(0.0, 0.0)]


def test_none_by_name_is_forward_only() -> None:
    report = on_cpu(Times(256.0), X, "none")
    assert (report.verdict, report.environment.forward_only) == ("forward-overflow", True)


def test_no_loss_at_all_says_how_to_give_one() -> None:
    with pytest.raises(ampdoctor.LoadError, match=r"not a loss\nGive one: loss_fn\(model, batch\)"):
        on_cpu(Times(1.0), X, None)


def test_a_loss_that_is_no_number() -> None:
    with pytest.raises(ampdoctor.LoadError, match=r"^loss_fn gives a tensor of shape \[4, 1\]"):
        on_cpu(Times(1.0), X, lambda model, batch: model(batch))


def test_an_unknown_name_of_a_loss() -> None:
    with pytest.raises(ampdoctor.LoadError, match=r"'ce' is no built-in loss\nThere are cross_entropy"):
        on_cpu(Times(1.0), X, "ce")


@pytest.mark.parametrize(
    "loss_fn", [nn.MSELoss(), F.mse_loss, lambda pred, y: ((pred - y) ** 2).mean(), "mse"]
)
def test_a_loss_of_output_and_target_gets_the_models_output(loss_fn: object) -> None:
    report = on_cpu(Times(2.0), (X, X), loss_fn)
    assert report.losses[0].reference == 256.0**2


@pytest.mark.parametrize("loss_fn", [3, nn.MSELoss, lambda batch: batch, lambda a, b, c: a])
def test_what_cannot_be_a_loss_function_is_a_type_error(loss_fn: object) -> None:
    with pytest.raises(TypeError, match=r"^loss_fn "):
        on_cpu(Times(1.0), X, loss_fn)


# ---------------------------------------------------------------- model and batches


def test_a_class_is_no_model() -> None:
    with pytest.raises(TypeError, match="got the class Times; give an instance"):
        scan(Times, X)  # type: ignore[arg-type]


def batches() -> Iterator[Tensor]:
    while True:
        yield X


@pytest.mark.parametrize(
    ("batch", "wanted", "scanned"),
    [
        (X, None, 1),
        ([(X,), (X,), (X,)], None, 3),
        ([(X,), (X,), (X,)], 2, 2),
        (batches(), None, 1),
        (batches(), 2, 2),
    ],
    ids=["a batch", "a list", "two of a list", "a generator", "two of a generator"],
)
def test_how_many_batches_are_scanned(batch: Any, wanted: int | None, scanned: int) -> None:
    report = on_cpu(Times(1.0), batch, "none", batches=wanted)
    assert report.environment.batches == scanned


@pytest.mark.parametrize("wanted", [0, True, 1.5])
def test_a_number_of_batches_that_is_none(wanted: Any) -> None:
    with pytest.raises(TypeError, match="batches must be a whole number"):
        on_cpu(Times(1.0), X, batches=wanted)


def test_an_empty_list_holds_no_batch() -> None:
    with pytest.raises(ampdoctor.LoadError, match="batch gives no batch, but an empty list"):
        on_cpu(Times(1.0), [])


def test_an_optimizer_that_exists_already_is_refused() -> None:
    model = Times(1.0)
    with pytest.raises(TypeError, match=r"optimizer must be a function \(model\)"):
        on_cpu(model, X, optimizer=torch.optim.SGD(model.parameters()))


def test_a_function_that_returns_no_optimizer_is_named() -> None:
    words = r"optimizer returned a list of 1 .*, not a torch\.optim\.Optimizer"
    with pytest.raises(ampdoctor.AmpDoctorError, match=words):
        on_cpu(Times(1.0), X, mode="half", optimizer=lambda m: [torch.optim.SGD(m.parameters())])


def test_an_optimizer_steps_a_copy_and_its_updates_are_judged() -> None:
    model = Times(1.0)
    # d(256 w)/dw = 256, and 1e-7 x 256 = 2.6e-5; half of FP16's step below 1 is 2^-12 = 2.4e-4.
    report = on_cpu(model, X, mode="half", optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-7))
    assert report.verdict == "update-swallowed"
    assert model.fc.weight.item() == 1.0


@pytest.mark.cuda
def test_a_model_on_a_gpu_is_scanned_there_or_on_the_cpu_and_stays_there() -> None:
    model = Times(256.0).cuda()
    for device in ("cuda", "cpu"):
        report = scan(model, X.cuda(), mean, device=device, loss_scale=1.0)
        assert report.verdict == "forward-overflow"
        assert report.environment.device.startswith(device)
        assert model.fc.weight.device.type == "cuda"


# ---------------------------------------------------------------- options are the config's


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bfloat16"},
        {"precision": torch.bfloat16},
        {"precision": {"dtype": "bfloat16"}},
        {"dtype": "bfloat16"},
        {"dtype": torch.bfloat16},
    ],
)
def test_bfloat16_holds_what_float16_cannot(options: dict[str, Any]) -> None:
    report = on_cpu(Times(256.0), X, **options)
    assert (report.environment.dtype, report.verdict) == ("bfloat16", "clean")


def test_half_weights_overflow_as_the_batch_is_cast() -> None:
    report = on_cpu(Times(1.0), X * 256, "none", mode="half")
    assert report.environment.mode == "half"
    assert report.verdict == "forward-overflow"


def test_limits_and_rules_reach_the_diagnosis() -> None:
    model = Times(64.0)  # log2(65504 / 16384) is just below 2
    assert "AMP103" not in codes(on_cpu(model, X))
    assert "AMP103" in codes(on_cpu(model, X, limits={"headroom_bits": 2}))
    assert "AMP103" not in codes(on_cpu(model, X, limits={"headroom_bits": 2, "fc": {"headroom_bits": 1}}))
    assert "AMP103" not in codes(on_cpu(model, X, limits={"headroom_bits": 2}, rules={"ignore": ["AMP103"]}))


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(TypeError, match="got dtype twice"):
        on_cpu(Times(1.0), X, precision={"dtype": "float16"}, dtype="bfloat16")


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(ampdoctor.ConfigError) as caught:
        on_cpu(Times(1.0), X, dtype="fp16", limits={"headrom_bits": 2}, seed=-1)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "precision.dtype",
        "seed",
        "limits.headrom_bits",
    ]


# ---------------------------------------------------------------- it leaves no trace


def test_model_gradients_and_generators_are_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 1))
    mean(model, X).backward()  # type: ignore[no-untyped-call]
    before = snapshot(model)
    on_cpu(model, X)
    assert_same(snapshot(model), before)


def test_a_compiled_model_runs_eagerly_and_is_compiled_afterwards() -> None:
    model = nn.Sequential(Times(256.0))
    compiled_child = torch.compile(model[0], backend="eager")
    model[0] = compiled_child
    model.compile(backend="eager")
    call = model._compiled_call_impl
    report = on_cpu(torch.compile(model, backend="eager"), X)
    assert report.first_fault is not None
    assert report.first_fault.module == "0.fc"
    assert model[0] is compiled_child
    assert model._compiled_call_impl is call is not None


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_gets_them_judged(without_gradients: Callable[[], Any]) -> None:
    model = Times(64.0)
    with without_gradients():
        report = on_cpu(model, X)
    assert [row.name for row in report.parameters] == ["fc.weight"]


def test_a_callers_autocast_changes_nothing() -> None:
    model = Times(256.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = on_cpu(model, X)
    assert [row.reference for row in report.losses] == [65536.0]
    assert report.verdict == "forward-overflow"


# ---------------------------------------------------------------- what ends a scan


def test_an_interruption_is_raised_and_not_reported() -> None:
    def interrupted(model: nn.Module, batch: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_cpu(Times(1.0), X, interrupted)


def test_a_model_that_fails_in_fp32_too_is_an_error_with_its_line() -> None:
    def broken(model: nn.Module, batch: Tensor) -> Tensor:
        raise ValueError("no such thing")

    with pytest.raises(ampdoctor.ProbeError, match=r"in FP32 as well.*no such thing\n.*test_api.py:\d+"):
        on_cpu(Times(1.0), X, broken)
