"""Options that several commands have, each with its one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Argument(help="The config; ampdoctor.yaml where it is left out.", show_default=False),
]
ModelTarget = Annotated[str | None, typer.Option(help="Without a config: file.py:name of the model.")]
DataTarget = Annotated[str | None, typer.Option(help="file.py:name of a batch, or a file of tensors.")]
LossTarget = Annotated[str | None, typer.Option(help="file.py:name, a built-in loss's name, or none.")]
OptimizerTarget = Annotated[str | None, typer.Option(help="file.py:name, or torch.optim:AdamW.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the config.")
]
PlanFile = Annotated[Path | None, typer.Option(help="Measure under this plan.yaml of `prescribe`.")]
Ops = Annotated[bool, typer.Option("--ops", help="Show which op ran in which dtype, by module.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]
