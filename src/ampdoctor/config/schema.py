"""The config contract, version 1: every key, its type, its default and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr

from ampdoctor.config.judging import GateSection, LimitsSection, RulesSection
from ampdoctor.config.loss_scale import LossScale
from ampdoctor.config.values import Device, Section, WholeNumber
from ampdoctor.config.workload import Data, Loss, ModelSection, OptimizerSection
from ampdoctor.facts.words import Mode


class PrecisionSection(Section):
    """The run that is examined, and what it is compared with."""

    mode: Mode = "autocast"
    """autocast; half (weights and batch cast to dtype); none (as built)."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """The low-precision dtype."""
    device: Device = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1."""
    emulate: Literal["cuda", "none"] = "cuda"
    """What a CPU imitates: cuda (its autocast lists, its rounding) or none (the CPU's own autocast)."""
    loss_scale: LossScale = "dynamic"
    """What the loss is multiplied by before backward. dynamic: torch's GradScaler, from 65536 on, judged at
    the scale where it settles; no scaler in bfloat16 and with mode none. {dynamic: 1024} starts elsewhere; a
    number stays."""
    reference: Literal["float32"] = "float32"
    """The precision that counts as right."""


class Config(Section):
    """Everything ampdoctor is asked to do. Paths are relative to ``directory``."""

    version: Literal[1] = 1
    """The version of this format."""
    model: ModelSection
    """What is examined."""
    data: Data
    """What it is run on, from one of several sources."""
    loss: Loss | None = None
    """target, builtin, or none for forward only; left out: output.loss, output["loss"] or a scalar output."""
    optimizer: OptimizerSection | None = None
    """Optional; (model) -> torch.optim.Optimizer."""
    precision: PrecisionSection = Field(default_factory=PrecisionSection)
    """The run that is examined."""
    seed: WholeNumber = Field(default=0, ge=0, lt=2**32)
    """Seeds python, numpy and torch before the model is built, before the data, and before every pass."""
    rules: RulesSection = Field(default_factory=RulesSection)
    """Which rules run."""
    limits: LimitsSection = Field(default_factory=lambda: LimitsSection.model_validate({}))
    """Where a figure becomes a finding."""
    gate: GateSection = Field(default_factory=GateSection)
    """What fails a build."""

    _directory: Path = PrivateAttr(default_factory=Path.cwd)
    _title: str = PrivateAttr(default="")

    @property
    def directory(self) -> Path:
        """The folder that relative paths start from: the config file's, or the current one."""
        return self._directory

    @property
    def title(self) -> str:
        """What to call it in a report: the config's file name, or the model target."""
        return self._title or self.model.target

    @property
    def file(self) -> Path | None:
        """The file it was read from; None for a config made of options."""
        return self._directory / self._title if self._title else None

    def path(self, relative: str) -> Path:
        """The file that a path in the config means."""
        return self._directory / Path(relative).expanduser()

    def located(self, directory: Path, title: str) -> Config:
        """The same config, living in ``directory`` under the name ``title``."""
        config = self.model_copy()
        config._directory, config._title = directory, title
        return config
