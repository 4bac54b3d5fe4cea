"""The Workload that a config describes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ampdoctor.config import Config
from ampdoctor.load import targets
from ampdoctor.load.data import load_batches
from ampdoctor.load.eager import eagerly
from ampdoctor.load.loss import build_step
from ampdoctor.load.model import load_model
from ampdoctor.load.optimizer import checked_optimizer
from ampdoctor.load.seeds import preserved_rng, seed_everything
from ampdoctor.load.workload import Workload


def load(config: Config) -> Workload:
    """The config's model, batches and loss, ready to run; LoadError with one clear message otherwise.

    The user's files are imported anew by each call. Their folders stay on ``sys.path`` until the next call,
    so that a forward pass may still import. The random generators are afterwards as they were before.
    """
    with preserved_rng(), targets.imported_anew(config.directory):
        seed_everything(config.seed)
        model, compiled = load_model(config)
        seed_everything(config.seed)
        batches = load_batches(config)
        step = build_step(config)
        build_optimizer = _optimizer(config)
    return Workload(
        title=config.title,
        model=model,
        batches=batches,
        step=eagerly(step),
        forward_only=config.loss == "none",
        build_optimizer=build_optimizer,
        compiled=compiled,
    )


def _optimizer(config: Config) -> Callable[[torch.nn.Module], torch.optim.Optimizer] | None:
    section = config.optimizer
    if section is None:
        return None
    build = targets.resolve(section.target, config.directory, "optimizer.target")
    takes_parameters = isinstance(build, type) and issubclass(build, torch.optim.Optimizer)
    targets.check_call(build, section.target, "optimizer", (None,), section.kwargs)

    def build_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        where = f"optimizer.target: {section.target}"
        hint = "" if takes_parameters else "It is called with the model: (model) -> torch.optim.Optimizer."
        with targets.user_code(where, hint):
            built = build(model.parameters() if takes_parameters else model, **section.kwargs)
        return checked_optimizer(built, where)

    return build_optimizer
