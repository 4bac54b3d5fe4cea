"""``ampdoctor.scan``: a model that Python code holds, examined where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ampdoctor.api.report import Report
from ampdoctor.api.request import plan_of, policy_of
from ampdoctor.config import Config, config_from_values
from ampdoctor.diagnose.engine import diagnose
from ampdoctor.load.live import live_workload
from ampdoctor.probe.session import probe

if TYPE_CHECKING:
    from ampdoctor.load.live import BuildOptimizer, LossFn

Section = Mapping[str, Any]
"""A section of the config, as a mapping of its keys."""


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
    loss_scale: float | None = None,
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
        model: any ``torch.nn.Module``; a compiled one runs eagerly.
        batch: one batch, in any nesting of dicts, lists and tensors; or a list or other iterable of them.
        loss_fn: ``(model, batch) -> loss``; the name of one of torch's losses, such as ``"cross_entropy"``;
            or ``"none"``, for the forward pass only. Left out: ``output.loss``, ``output["loss"]`` or a
            scalar output of the model.
        precision: the config's section as a mapping, or only its dtype: ``"bfloat16"``.
        mode: ``"autocast"`` | ``"half"`` (weights and batch in ``dtype``) | ``"none"`` (as built).
        dtype: ``"float16"`` | ``"bfloat16"``.
        device: ``"auto"`` (a GPU if there is one) | ``"cpu"`` | ``"cuda"`` | ``"cuda:1"``.
        emulate: what a CPU imitates: ``"cuda"`` | ``"none"``.
        loss_scale: the configured one, 65536 where it is left out.
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
    section = _precision(
        precision, mode=mode, dtype=dtype, device=device, emulate=emulate, loss_scale=loss_scale
    )
    config = _config(type(model).__name__, precision=section, seed=seed, limits=limits, rules=rules)
    # A caller in inference mode would get a scan without gradients.
    with (
        torch.inference_mode(False),
        live_workload(
            model,
            batch,
            loss_fn,
            batches=batches,
            build_optimizer=optimizer,
            seed=config.seed,
            title=config.title,
        ) as workload,
    ):
        trace = probe(workload, plan_of(config))
    if trace.interrupted:
        raise KeyboardInterrupt("the scan was interrupted")
    return Report.of(diagnose(trace, policy_of(config)))


def _config(title: str, **sections: Any) -> Config:
    """What a config with these sections asks for; None counts as left out."""
    # A config names its model and data; here they are at hand, and the targets are never resolved.
    live = {"model": {"target": "python:model"}, "data": {"target": "python:batch"}}
    given = {name: section for name, section in sections.items() if section is not None}
    return config_from_values({**live, **given}, title)


def _precision(precision: Section | str | torch.dtype | None, **single: Any) -> dict[str, Any]:
    """The config's section: ``precision`` and the keywords that name one of its keys."""
    section: dict[str, Any] = {}
    if isinstance(precision, Mapping):
        section = {key: _plain(value) for key, value in precision.items()}
    elif precision is not None:
        section["dtype"] = _plain(precision)
    for key, value in single.items():
        if value is None:
            continue
        if key in section:
            raise TypeError(f"scan() got {key} twice: as a keyword and in precision")
        section[key] = _plain(value)
    return section


def _plain(value: Any) -> Any:
    """The config's word for one of torch's own values."""
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    return value
