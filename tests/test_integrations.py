"""The flight recorder in real trainers: the poisoned step is kept, and its loss comes out again."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampdoctor
from ampdoctor.api.bundle_load import bundled
from ampdoctor.live.watch import LoopWatch

BAD = 2
"""The step whose batch holds a NaN."""


class Net(nn.Module):
    """Square of what one layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        out = self.body(x)
        return {"loss": out.square().mean(), "logits": out}


def rows() -> list[dict[str, Any]]:
    """Four batches of four, in order; the third has a NaN in its second sample."""
    data = [{"x": torch.full((6,), i / 16), "labels": torch.tensor(i % 3)} for i in range(16)]
    data[4 * BAD + 1]["x"][3] = math.nan
    return data


def check(folder: Path, found: list[Path], model: str | None = None) -> None:
    """Only the poisoned step is there, its loss is NaN here too, and nobody watches any more."""
    assert found == [folder / f"step-{BAD:08d}"]
    with bundled(found[0], model) as (workload, _, bundle):
        loss = workload.step(workload.model, workload.batches[0])
        assert bundle.why == "loss"
        assert torch.isnan(loss)
        assert sum(int(t.isnan().sum()) for t in workload.batches[0]) == 1
        assert all(p.isfinite().all() for p in workload.model.parameters())  # before the update
    assert not LoopWatch.is_open


def test_hugging_face_trainer(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from ampdoctor.integrations.transformers import FlightRecorderCallback

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    arguments = TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=4, max_steps=4, use_cpu=True, bf16=True,
        report_to=[], save_strategy="no", disable_tqdm=True, logging_nan_inf_filter=False,
    )  # fmt: skip
    recorder = FlightRecorderCallback(tmp_path / "flight")
    data: Any = rows()
    InOrder(model=Net(), args=arguments, train_dataset=data, callbacks=[recorder]).train()
    assert recorder.recorder is not None
    check(tmp_path / "flight", recorder.recorder.bundles, "test_integrations:Net")


@pytest.mark.parametrize("raises", [False, True])
def test_lightning(tmp_path: Path, raises: bool) -> None:
    import lightning

    from ampdoctor.integrations.lightning import FlightRecorderCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net().body

        def training_step(self, batch: Any, index: int) -> Tensor:
            if raises and index == BAD + 1:
                raise RuntimeError("enough")
            out: Tensor = self.net(batch["x"])
            return out.square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    recorder = FlightRecorderCallback(tmp_path / "flight")
    trainer = lightning.Trainer(
        default_root_dir=tmp_path, max_steps=4, precision="bf16-mixed", accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[recorder],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(rows(), batch_size=4)  # type: ignore[arg-type]
    if raises:
        with pytest.raises(RuntimeError, match="enough"):
            trainer.fit(Module(), loader)
    else:
        trainer.fit(Module(), loader)
    assert recorder.recorder is not None
    check(tmp_path / "flight", recorder.recorder.bundles)  # torch's own modules need no code


def test_accelerate(tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    net: Any = Net().body
    optimizer: Any = torch.optim.AdamW(net.parameters(), lr=0.01)
    loader: Any = torch.utils.data.DataLoader(rows(), batch_size=4)  # type: ignore[arg-type]
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    with ampdoctor.FlightRecorder(net, optimizer, directory=tmp_path / "flight") as recorder:
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(net(batch["x"]).square().mean())
            optimizer.step()
    check(tmp_path / "flight", recorder.bundles)


@pytest.mark.parametrize(("name", "library"), [("transformers", "lightning"), ("lightning", "transformers")])
def test_an_integration_imports_its_own_library_alone(name: str, library: str) -> None:
    code = f"import sys, ampdoctor.integrations.{name}; assert '{library}' not in sys.modules"
    if name == "lightning":  # which looks for transformers itself where it is installed
        code = "import sys, ampdoctor, ampdoctor.integrations; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
