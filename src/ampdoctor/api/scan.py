"""``ampdoctor.scan``: a model that Python code holds, examined where it is."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import torch

from ampdoctor.api.report import Report
from ampdoctor.api.request import plan_of, policy_of
from ampdoctor.api.settings import Section, config_of, precision_section
from ampdoctor.config import Config
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.load.live import live_workload
from ampdoctor.probe.passes.alone import alone_with_objects
from ampdoctor.probe.scan import probe

if TYPE_CHECKING:
    from ampdoctor.load.live import BuildOptimizer, LossFn


def scan(
    model: torch.nn.Module,
    batch: Any,
    loss_fn: LossFn | str | None = None,
    *,
    precision: Section | str | torch.dtype | None = None,
    mode: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    emulate: str | None = None,
    loss_scale: float | str | Section | None = None,
    batches: int | None = None,
    seed: int = 0,
    optimizer: BuildOptimizer | None = None,
    limits: Section | None = None,
    rules: Section | None = None,
) -> Report:
    """The report on ``model``, run in FP32 and in low precision on ``batch``, forward and backward.

    The model, its gradients, the batch, the random generators and torch's switches are afterwards as they
    were. What is left out is as in a config that leaves it out.

    Args:
        model: any ``torch.nn.Module``, in training or evaluation as it is; a compiled one runs eagerly, and
            one inside DDP, DataParallel, FSDP2 or tensor parallelism as the model it is on one device.
        batch: one batch: a tensor, a dict, a tuple, a dataclass, or a list with a tensor in it, as a
            DataLoader collates it; or several: a list of dicts, tuples, lists or dataclasses, or any
            other iterable. A list of tensors is one batch of several tensors.
        loss_fn: ``(model, batch) -> loss``; the name of one of torch's losses, such as ``"cross_entropy"``;
            or ``"none"``, for the forward pass only. Left out: ``output.loss``, ``output["loss"]`` or a
            scalar output of the model.
        precision: the config's section as a mapping, or only its dtype: ``"bfloat16"``.
        mode: ``"autocast"`` | ``"half"`` (weights and batch in ``dtype``) | ``"none"`` (as built).
        dtype: ``"float16"`` | ``"bfloat16"``.
        device: ``"auto"`` (a GPU if there is one) | ``"cpu"`` | ``"cuda"`` | ``"cuda:1"``.
        emulate: what a CPU imitates: ``"cuda"`` | ``"none"``.
        loss_scale: ``"dynamic"``, also where it is left out: a GradScaler from 65536, judged at the scale
            where it settles; in BF16 no scaler. ``{"dynamic": 1024}`` starts elsewhere; a number stays.
        batches: how many batches to take; left out: all of a list, the first of any other iterable.
        seed: set before every pass.
        optimizer: ``(model) -> torch.optim.Optimizer``; the scan steps one of its own.
        limits: the config's section: ``{"headroom_bits": 2, "decoder.*": {"headroom_bits": 1}}``.
        rules: the config's section: ``{"select": ["AMP"], "ignore": ["AMP103"]}``.

    Raises:
        TypeError: an argument is of the wrong kind, such as a ``loss_fn`` that takes (output, target).
        AmpDoctorError: an argument's value is wrong (ConfigError), the batch or the loss is none (LoadError),
            or nothing could be measured (ProbeError), such as a model that raises in FP32 as well.
    """
    section = precision_section(
        precision, mode=mode, dtype=dtype, device=device, emulate=emulate, loss_scale=loss_scale
    )
    config = config_of(type(model).__name__, precision=section, seed=seed, limits=limits, rules=rules)
    return examine(config, model, batch, loss_fn, batches=batches, optimizer=optimizer)


def examine(
    config: Config,
    model: torch.nn.Module,
    batch: Any,
    loss_fn: LossFn | str | None,
    *,
    batches: int | None = None,
    optimizer: BuildOptimizer | None = None,
) -> Report:
    """The report on live objects, run and judged as ``config`` says."""
    live = live_workload(
        model,
        batch,
        loss_fn,
        batches=batches,
        build_optimizer=optimizer,
        seed=config.seed,
        title=config.title,
    )
    # A caller in inference mode would get a scan without gradients.
    with alone_with_objects(), torch.inference_mode(False), live as workload:
        trace = probe(workload, plan_of(config))
    if trace.interrupted:
        raise KeyboardInterrupt("the scan was interrupted")
    return Report.of(diagnose(trace, policy_of(config, datetime.date.today().isoformat())))
