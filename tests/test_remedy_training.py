"""Proof by training: a model that diverges in FP16 follows FP32's loss curve with the plan applied.

A CPU's own autocast in FP16 overflows as a GPU's does: it rounds the product of a Linear to FP16. So nothing
is emulated here; GradScaler is torch's, for the CPU.
"""

from __future__ import annotations

import math
import tempfile
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ampdoctor
from ampdoctor.diagnose.policy import Policy
from ampdoctor.load.workload import Workload
from ampdoctor.probe.plan import Plan
from ampdoctor.remedy.plan import TreatmentPlan
from ampdoctor.remedy.prescribe import prescribe

STEPS, RATE = 200, 3e-3
TOLERANCE = 0.02
"""Of a step's loss, relative: FP16 keeps 11 bits (5e-4 per rounding), and 200 steps of AdamW add to that."""


class FeedForward(nn.Module):
    """x + wo(relu(wi(norm(x)))), as T5's."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
        with torch.no_grad():
            self.wi.weight.mul_(gain)
            self.wo.weight.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.wo(F.relu(self.wi(F.rms_norm(x.float(), (8,)))))


class SmallT5(nn.Module):
    """Its second feed-forward makes about 10^6, ten times past FP16's 65,504; a norm takes it back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([FeedForward(1.0), FeedForward(1000.0)])
        self.head = nn.Linear(8, 11, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(F.rms_norm(x.float(), (8,)))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


TOKENS = torch.arange(24).reshape(4, 6) * 7 % 11
TARGETS = TOKENS.roll(-1, 1)


def curve(model: nn.Module, low: bool) -> list[float]:
    """The loss of every step; with ``low`` under FP16 autocast and GradScaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=low)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=low):
            loss = model(TOKENS, TARGETS)["loss"]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return losses


def test_200_steps_follow_fp32_with_the_plan_and_diverge_without() -> None:
    exact = curve(SmallT5(), low=False)
    assert exact[-1] < exact[0] / 2
    assert not any(map(math.isfinite, curve(SmallT5(), low=True)))
    model = SmallT5()
    with ampdoctor.apply(model, found_plan()):
        treated = curve(model, low=True)
    assert treated == pytest.approx(exact, rel=TOLERANCE)


def found_plan() -> TreatmentPlan:
    """What the search finds for it."""
    batch = {"input_ids": TOKENS, "labels": TARGETS}
    workload = Workload("small T5", SmallT5(), (batch,), lambda m, b: m(**b)["loss"])
    best = prescribe(workload, Plan(device="cpu", loss_scale=1024.0), Policy()).treatments[0]
    assert best.plan.fp32 == ("blocks.1.wo",)
    return best.plan


def test_a_hugging_face_trainer_follows_fp32_with_the_plan() -> None:
    """Its loop, its optimizer and its scaler's steps; Accelerate opens FP16 autocast on a GPU only, so that
    the test opens it around the loss."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    data = [{"input_ids": ids, "labels": labels} for ids, labels in zip(TOKENS, TARGETS, strict=True)]

    def train(model: nn.Module, low: bool) -> list[float]:
        losses: list[float] = []

        class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
            def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                with torch.autocast("cpu", torch.float16, enabled=low):
                    loss = model(**inputs)["loss"]
                losses.append(float(loss.detach()))
                return loss

        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, max_steps=STEPS, per_device_train_batch_size=4, learning_rate=RATE, use_cpu=True,
                lr_scheduler_type="constant", max_grad_norm=0.0, save_strategy="no", report_to=[],
                logging_strategy="no", disable_tqdm=True,
            )  # fmt: skip
            trainer = Trainer(model=model, args=arguments, train_dataset=data)
            if low:
                trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            trainer.train()
        return losses

    exact = train(SmallT5(), low=False)
    diverged = SmallT5()
    assert not any(map(math.isfinite, train(diverged, low=True)))
    assert torch.equal(diverged.head.weight, SmallT5().head.weight)  # GradScaler skipped every step
    model = SmallT5()
    with ampdoctor.apply(model, found_plan()):
        treated = train(model, low=True)
    assert len(treated) == STEPS
    assert treated == pytest.approx(exact, rel=TOLERANCE)
