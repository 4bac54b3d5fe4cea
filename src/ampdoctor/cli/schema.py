"""``ampdoctor schema``: the JSON Schema of a report or of a config, for editors and for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ampdoctor.cli.output import check_writable, write_document
from ampdoctor.errors import ConfigError


def schema(
    name: Annotated[str, typer.Argument(metavar="report|config|run|prescription", help="What to describe.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
) -> None:
    """Print the JSON Schema of the JSON report, of the config, of a run's report or of a prescription."""
    from ampdoctor.schemas import NAMES, schema_text

    if name not in NAMES:
        raise ConfigError(f"there is no schema {name}", hint=f"schemas: {', '.join(NAMES)}")
    check_writable(output, "--output")
    write_document(schema_text(name), output)
