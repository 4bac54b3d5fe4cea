"""The schemas that are shipped: in step with the code, and true of what it reads and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ampdoctor.cli.init import TEMPLATE, config_text
from ampdoctor.cli.main import run
from ampdoctor.config import config_from_options, load_config
from ampdoctor.diagnose.report import Report
from ampdoctor.errors import ConfigError
from ampdoctor.schemas import NAMES, schema_text
from ampdoctor.schemas.config import config_schema
from ampdoctor.schemas.prescription import prescription_schema
from ampdoctor.schemas.report import report_schema
from ampdoctor.schemas.run import run_schema
from case_runner import scanned_sample
from hostile import accepted, clean, failing, many, sick, unchecked, without_source

ROOT = Path(__file__).parent.parent
SAMPLES = sorted((ROOT / "sample_configs").glob("*.yaml"))
GENERATED = {
    "report": report_schema,
    "config": config_schema,
    "run": run_schema,
    "prescription": prescription_schema,
}


def closed(schema: Any) -> Any:
    """The schema with no key allowed that it does not describe: a report may have more, ours has not."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: closed(part) for key, part in schema.items()}
    if "properties" in schema and isinstance(schema.get("type"), str):
        strict["additionalProperties"] = False
    return strict


REPORT = Draft202012Validator(closed(report_schema()))
CONFIG = Draft202012Validator(config_schema())


def complaints(validator: Draft202012Validator, document: Any) -> list[str]:
    """What the schema has against it, each with its key path."""
    found = validator.iter_errors(json.loads(json.dumps(document, default=str)))
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_schema_is_in_step_with_the_code(name: str) -> None:
    assert json.loads(schema_text(name)) == GENERATED[name](), "run: make schemas"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_schema(name: str) -> None:
    schema = json.loads(schema_text(name))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", NAMES)
def test_every_definition_is_used(name: str) -> None:
    text = schema_text(name)
    unused = [each for each in json.loads(text)["$defs"] if f'"#/$defs/{each}"' not in text]
    assert unused == []


# ---------------------------------------------------------------- report


@pytest.mark.parametrize("config", SAMPLES, ids=lambda path: path.stem)
def test_every_samples_report_is_valid(config: Path) -> None:
    _, report = scanned_sample(config)
    assert complaints(REPORT, report.to_dict()) == []


@pytest.mark.parametrize(
    "report", [clean(), sick(), without_source(), many(3), accepted(), failing(sick()), unchecked()]
)
def test_a_report_is_valid(report: Report) -> None:
    assert complaints(REPORT, report.to_dict()) == []


def test_every_key_of_a_report_is_described() -> None:
    assert set(report_schema()["properties"]) == set(sick().to_dict())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("verdict", "fine"),
        ("schema", "ampdoctor.report/2"),
        ("seconds", "soon"),
        ("first_fault.cause", "bad luck"),
        ("first_fault.index", [0.5]),
        ("loss_scale.window", [1]),
        ("findings.0.severity", "fatal"),
        ("losses.0.candidate", "NaN"),
        ("parameters.0.name", None),
    ],
)
def test_what_no_report_says_is_invalid(path: str, value: Any) -> None:
    document: Any = sick().to_dict()
    *parents, last = path.split(".")
    inner = document
    for parent in parents:
        inner = inner[int(parent) if parent.isdigit() else parent]
    inner[last] = value
    assert complaints(REPORT, document) != []


def test_a_key_without_a_value_is_not_a_missing_key() -> None:
    document = clean().to_dict()
    assert document["first_fault"] is None
    del document["first_fault"]
    assert complaints(REPORT, document) == ["$: 'first_fault' is a required property"]


def test_a_field_is_described_by_its_docstring() -> None:
    loss_scale = report_schema()["$defs"]["LossScale"]["properties"]
    assert loss_scale["searched"]["description"] == "Loss scales were looked for."
    assert loss_scale["underflow_fraction"]["description"].endswith("; null where it overflows.")


# ---------------------------------------------------------------- config

SMALLEST = {"model": {"target": "m.py:f"}, "data": {"target": "m.py:g"}}


@pytest.mark.parametrize("config", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_config_is_valid(config: Path) -> None:
    assert complaints(CONFIG, yaml.safe_load(config.read_text())) == []


def test_the_guides_config_is_valid() -> None:
    guide = (ROOT / "docs" / "guide" / "config.md").read_text()
    (block,) = (part for part in guide.split("```yaml\n")[1:] if part.startswith("version: 1"))
    assert complaints(CONFIG, yaml.safe_load(block.partition("```")[0])) == []


def test_what_init_writes_is_valid(tmp_path: Path) -> None:
    written = config_text(config_from_options("m.py:f", "m.py:g", "cross_entropy"), Path.cwd())
    assert complaints(CONFIG, yaml.safe_load(written)) == []
    assert "# limits:" in TEMPLATE


ACCEPTED: list[dict[str, Any]] = [
    {"model": {"target": "package.module:Outer.build", "kwargs": {"n": 2}}},
    {"data": {"file": "batch.pt"}},
    {"data": {"synthetic": {"x": {"shape": [8, 3], "dtype": "int64", "high": 10}}, "batches": 2}},
    {"loss": "none"},
    {"loss": {"builtin": "cross_entropy", "kwargs": {"label_smoothing": 0.1}}},
    {"loss": None, "precision": None, "optimizer": None, "rules": {"select": None}},
    {"precision": {"device": "cuda:1", "loss_scale": 1024}},
    {"limits": {"headroom_bits": 2, "decoder.*": {"headroom_bits": 0.5, "drift": 0.1}}},
    {"gate": {"fail_on": ["warning", "AMP103", "AMP2"]}},
    {"rules": {"waivers": [{"code": "AMP103", "reason": "known", "expires": "2027-01-31"}]}},
]
REFUSED: list[dict[str, Any]] = [
    {"modle": {"target": "m.py:f"}},
    {"model": {"target": "m.py"}},
    {"model": {"target": "m.py:2f"}},
    {"model": None},
    {"version": 2},
    {"data": {"synthetic": {}}},
    {"data": {"file": "batch.pt", "batches": 0}},
    {"loss": "cross_entropy"},
    {"loss": {"builtin": "crossentropy"}},
    {"precision": {"device": "gpu"}},
    {"precision": {"dtype": "float8"}},
    {"precision": {"loss_scale": 0}},
    {"limits": {"headroom_bits": -1}},
    {"limits": {"decoder.*": {"headroom": 1}}},
    {"limits": {"gradient_underflow": 1.5}},
    {"gate": {"fail_on": ["fatal"]}},
    {"rules": {"waivers": [{"code": "E101", "reason": "known"}]}},
    {"rules": {"waivers": [{"code": "AMP101"}]}},
    {"seed": 2**32},
]


@pytest.mark.parametrize("change", ACCEPTED, ids=str)
def test_what_the_reader_takes_is_valid(change: dict[str, Any], tmp_path: Path) -> None:
    document = SMALLEST | change
    _read(document, tmp_path)
    assert complaints(CONFIG, document) == []


@pytest.mark.parametrize("change", REFUSED, ids=str)
def test_what_the_reader_refuses_is_invalid(change: dict[str, Any], tmp_path: Path) -> None:
    document = SMALLEST | change
    with pytest.raises(ConfigError):
        _read(document, tmp_path)
    assert complaints(CONFIG, document) != []


def _read(document: dict[str, Any], folder: Path) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    load_config(folder / "config.yaml")


def test_every_key_is_described() -> None:
    schema = config_schema()
    sections = [schema, *schema["$defs"].values()]
    bare = [
        name
        for section in sections
        for name, part in section.get("properties", {}).items()
        if "description" not in part and not _described_by_its_section(part)
    ]
    assert bare == []


def _described_by_its_section(part: dict[str, Any]) -> bool:
    return any("$ref" in choice for choice in part.get("anyOf", ()))


# ---------------------------------------------------------------- command


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", name]) == 0
    assert capsys.readouterr().out == schema_text(name)


def test_the_command_writes_it(tmp_path: Path) -> None:
    assert run(["schema", "config", "-o", str(tmp_path / "ampdoctor.schema.json")]) == 0
    assert (tmp_path / "ampdoctor.schema.json").read_text() == schema_text("config")


def test_another_schema_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "trace"]) == 2
    assert (
        capsys.readouterr().err
        == "hint: schemas: report, config, run, prescription\nerror: there is no schema trace\n"
    )
