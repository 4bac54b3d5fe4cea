"""The documents of a gate: one for all configs, or one per config where the file's name asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampdoctor.cli.job_summary import append_job_summary
from ampdoctor.cli.output import drawing, write_document
from ampdoctor.cli.sinks import Sink, sinks_of
from ampdoctor.diagnose.report import Report
from ampdoctor.errors import ConfigError

PLACEHOLDER = "{config}"


@dataclass(frozen=True)
class Document:
    """A sink, and which of the reports go into it."""

    sink: Sink
    reports: tuple[int, ...]
    """Positions among the subjects."""


def documents_of(
    format_name: str, outputs: Sequence[str] | None, names: Sequence[str]
) -> tuple[Document, ...]:
    """What to write where. Raises ConfigError for several reports in a format that holds one."""
    from ampdoctor.render import GATE

    documents: list[Document] = []
    for sink in sinks_of(format_name, outputs):
        if sink.file is not None and PLACEHOLDER in sink.file.name:
            documents += _one_each(sink, sink.file, names)
        elif len(names) > 1 and sink.format not in GATE:
            raise ConfigError(
                f"{sink.format} holds one report, and here are {len(names)}",
                f"--output '{sink.format}={PLACEHOLDER}.{sink.format}' writes a file for each",
            )
        else:
            documents.append(Document(sink, tuple(range(len(names)))))
    return tuple(documents)


def emit_gate(reports: Sequence[Sequence[Report]], documents: Sequence[Document]) -> None:
    """Nothing; the documents are on stdout and in their files. ``reports``: those of each subject."""
    from ampdoctor.render import FORMATS, GATE

    for document in documents:
        sink, chosen = document.sink, [report for i in document.reports for report in reports[i]]
        options = drawing(sink.file, programs=[report.config for report in chosen])
        if sink.format in GATE:
            text = GATE[sink.format](chosen, options)
        else:
            text = FORMATS[sink.format](chosen[0], options)
        write_document(text, sink.file)
    if any(document.sink.format == "github" for document in documents):
        append_job_summary([report for own in reports for report in own], all_layers=False)


def _one_each(sink: Sink, file: Path, names: Sequence[str]) -> list[Document]:
    stems = [Path(name).name.removesuffix(".gz").rpartition(".")[0] or Path(name).name for name in names]
    doubles = sorted({stem for stem in stems if stems.count(stem) > 1})
    if doubles:
        raise ConfigError(f"--output {file}: {PLACEHOLDER} would be {doubles[0]} twice")
    return [
        Document(Sink(sink.format, file.with_name(file.name.replace(PLACEHOLDER, stem))), (i,))
        for i, stem in enumerate(stems)
    ]
