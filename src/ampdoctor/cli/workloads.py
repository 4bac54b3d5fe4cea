"""What the commands examine: what a config describes, or a step of a training script in its place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampdoctor.cli.progress import progress_bar
from ampdoctor.cli.user_output import user_output_to_stderr
from ampdoctor.errors import ConfigError
from ampdoctor.facts.trace import Trace
from ampdoctor.facts.training import torch_scaler

if TYPE_CHECKING:
    from ampdoctor.config import Config
    from ampdoctor.load.script.program import Program
    from ampdoctor.load.workload import Workload

DEFAULT_CONFIG = Path("ampdoctor.yaml")

ScriptFile = Annotated[
    Path | None,
    typer.Option(
        "--script", metavar="FILE", help="A training script in the config's place; its arguments after --."
    ),
]
ScriptModule = Annotated[
    str | None, typer.Option("-m", metavar="MODULE", help="The same, run as python -m does.")
]
StepNumber = Annotated[
    int | None, typer.Option("--step", help="Of a script: the step to take, from 0.", min=0)
]
Backward = Annotated[
    int | None, typer.Option("--backward", metavar="LINE", help="Of a step with several: its line.", min=1)
]


@dataclass(frozen=True)
class Targets:
    """What stands on the command line in a config's place, as the user wrote it."""

    model: str | None = None
    data: str | None = None
    loss: str | None = None
    optimizer: str | None = None

    @property
    def options(self) -> list[str]:
        """The options that were given: ``--model``."""
        return [f"--{field.name}" for field in fields(self) if getattr(self, field.name)]

    @property
    def words(self) -> list[str]:
        """The same with their values, for a command line."""
        return [word for option in self.options for word in (option, getattr(self, option[2:]))]


@dataclass(frozen=True)
class Script:
    """A training script in a config's place."""

    program: Program
    step: int | None = None
    """None: the first complete one."""
    line: int | None = None
    """Of the backward, where a step has several."""
    overrides: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The option that names it."""
        return "-m" if self.program.is_module else "--script"

    @property
    def options(self) -> str:
        """The options that name it and its step, on a command line."""
        step = "" if self.step is None else f" --step {self.step}"
        line = "" if self.line is None else f" --backward {self.line}"
        return f"{self.option} {shlex.quote(self.program.target)}{step}{line}"

    @property
    def rest(self) -> str:
        """The end of such a command line: `` -- `` and the script's own arguments; '' without any."""
        return f" -- {shlex.join(self.program.arguments)}" if self.program.arguments else ""

    @staticmethod
    def named(
        file: Path | None,
        module: str | None,
        context: typer.Context,
        step: int | None = None,
        line: int | None = None,
    ) -> Script | None:
        """What ``--script`` or ``-m``, and the words after ``--``, name; None without them.

        ConfigError for no script.
        """
        if file is not None and module is not None:
            raise ConfigError("--script and -m do not go together", "one names a file, the other a module")
        if file is None and module is None:
            for option, value in (("--step", step), ("--backward", line)):
                if value is not None:
                    raise ConfigError(f"{option} is of a script", f"--script train.py {option} {value}")
            return None
        from ampdoctor.load.script.program import Program, check_program

        program = Program(module or str(file), tuple(context.obj or ()), is_module=module is not None)
        check_program(program)
        return Script(program, step, line)


@dataclass(frozen=True)
class Recording:
    """A bundle in a config's place."""

    folder: Path
    model: str | None = None
    """``file.py:build_model``, for a model that the bundle cannot make itself."""
    overrides: tuple[str, ...] = ()

    @property
    def options(self) -> str:
        """The words that name it on a command line."""
        return shlex.join([str(self.folder), *(() if self.model is None else ("--model", self.model))])

    @staticmethod
    def named(config: Path | None, targets: Targets, overrides: Sequence[str]) -> Recording | None:
        """The bundle, where a folder stands in a config's place. ConfigError for options of no use to it."""
        if config is None or not config.is_dir():
            return None
        other = next((option for option in targets.options if option != "--model"), None)
        if other is not None:
            raise ConfigError(
                f"{other} and a bundle do not go together", "the bundle holds its batch and its loss"
            )
        return Recording(config, targets.model, tuple(overrides))


def source_of(
    config: Path | None, targets: Targets, overrides: Sequence[str], script: Script | None = None
) -> Config | Script | Recording:
    """What to examine: a config from a file or from the options, a script, or a bundle.

    Raises ConfigError where none or several are given.
    """
    given = targets.options
    if script is not None:
        other = given[0] if given else None if config is None else str(config)
        if other is not None:
            raise ConfigError(
                f"{script.option} and {other} do not go together",
                hint="change what the script does: --set precision.dtype=bfloat16",
            )
        return replace(script, overrides=tuple(overrides))
    recording = Recording.named(config, targets, overrides)
    if recording is not None:
        return recording
    return config_of(config, targets, overrides)


def config_of(config: Path | None, targets: Targets, overrides: Sequence[str]) -> Config:
    """The config from a file or from the options; ConfigError where none or both are given."""
    given = targets.options
    if config is not None and given:
        raise ConfigError(
            f"{given[0]} and a config do not go together",
            hint=f"change the config's own key: --set {given[0][2:]}.target=file.py:name",
        )
    if config is None and not given and DEFAULT_CONFIG.is_file():
        config = DEFAULT_CONFIG
    if config is None and not given:
        raise ConfigError(
            "nothing to scan: name a config, or a model and its data",
            hint="ampdoctor scan --model model.py:build_model --data model.py:build_batch, "
            "--script train.py, or `ampdoctor init` to write a config",
        )

    from ampdoctor.config import config_from_options, load_config

    if config is not None:
        return load_config(config, overrides)
    return config_from_options(targets.model, targets.data, targets.loss, overrides, targets.optimizer)


@contextmanager
def opened(source: Config | Script | Recording) -> Iterator[tuple[Workload, Config]]:
    """What to examine, loaded, and the config that says how; a script's is made of what it does itself."""
    if isinstance(source, Script):
        from ampdoctor.api.script_load import scripted

        with scripted(source.program, source.step, source.line, source.overrides) as found:
            yield found
        return
    if isinstance(source, Recording):
        from ampdoctor.api.bundle_load import bundled

        with bundled(source.folder, source.model, source.overrides) as (workload, settings, _):
            yield workload, settings
        return
    from ampdoctor.load import load
    from ampdoctor.probe.cuda.on_cpu import requested_autocast

    with requested_autocast():
        workload = load(source)
    yield workload, source


def run_probe(
    source: Config | Script | Recording, quiet: bool, plan: Path | None = None, after_steps: int = 0
) -> tuple[Trace, Config]:
    """The trace of what is examined, under the plan in this file where one is named; and its config.

    ``after_steps``: as it is after so many training steps.
    The user's prints go to stderr: stdout is the document.
    """
    from ampdoctor.remedy.plan import TreatmentPlan, check_paths
    from ampdoctor.remedy.plan_file import read_plan

    if after_steps:
        _check_trains(source)
    treatment = TreatmentPlan() if plan is None else read_plan(plan)
    with user_output_to_stderr(), progress_bar(quiet) as progress:
        progress("loading", 0, 1)
        with opened(source) as (workload, settings):
            from ampdoctor.api.request import plan_of, policy_of
            from ampdoctor.probe.scan import probe
            from ampdoctor.remedy.treatment_runs import treated

            policy_of(settings)  # what is wrong in it is said before the long work
            check_paths(treatment, (path for path, _ in workload.model.named_modules()))
            request = treated(plan_of(settings), treatment)
            if after_steps:
                from ampdoctor.probe.steps.advance import advanced

                settings_then = torch_scaler(request.loss_scale)
                workload, request = advanced(workload, request, settings_then, after_steps, progress)
            return probe(workload, request, progress), settings


def _check_trains(source: Config | Script | Recording) -> None:
    """Nothing; ConfigError for what --after-steps cannot train."""
    if isinstance(source, Recording):
        raise ConfigError("--after-steps is of a config: a bundle holds one step, and one batch")
    if isinstance(source, Script):
        raise ConfigError(
            "--after-steps is of a config: a script takes steps of its own", hint="--step names one of them"
        )
    if source.loss == "none" or source.optimizer is None:
        missing = "loss: none" if source.loss == "none" else "optimizer: is missing"
        raise ConfigError(
            f"{missing}, and --after-steps takes real training steps",
            hint="add to the config: optimizer: {target: models.py:build_optimizer}, and a loss",
        )
