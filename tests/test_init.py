"""``ampdoctor init``: what it writes, that it loads, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from ampdoctor.cli.init import config_text, init
from ampdoctor.config import Config, config_from_options, load_config, parse_config
from ampdoctor.config.problems import KEY_PATHS
from ampdoctor.config.workload import DataFile, LossBuiltin
from ampdoctor.errors import ConfigError, LoadError
from load_helpers import MODELS, write


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path, "code/models.py", MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


MODEL, DATA, LOSS = (f"code/models.py:{name}" for name in ("build_model", "build_batch", "compute_loss"))


def test_it_writes_a_config_that_loads_and_says_what_to_run(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(MODEL, DATA, LOSS)
    config = load_config(project / "ampdoctor.yaml")
    assert config.model.target == MODEL
    assert capsys.readouterr().out == (
        "ampdoctor.yaml is written. It loads: Linear with 8 parameters, 1 batch.\n"
        "Next: ampdoctor scan ampdoctor.yaml\n"
    )


def test_paths_are_seen_from_the_config_s_folder(project: Path) -> None:
    (project / "conf").mkdir()
    init(MODEL, DATA, LOSS, output=Path("conf/scan.yaml"))
    assert load_config(project / "conf/scan.yaml").model.target == "../code/models.py:build_model"


def test_without_a_terminal_the_missing_options_are_named(project: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        init(loss=LOSS)
    assert caught.value.problems == ("--model: is required", "--data: is required")
    assert not (project / "ampdoctor.yaml").exists()


def test_at_a_terminal_it_asks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"Model": MODEL, "Data": DATA, "Loss": ""}
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", lambda question, **_: answers.pop(question.split()[0]))
    init()
    assert answers == {}
    assert load_config(project / "ampdoctor.yaml").loss is None


def test_it_overwrites_only_when_told(project: Path) -> None:
    file = project / "ampdoctor.yaml"
    file.write_text("mine")
    with pytest.raises(ConfigError) as caught:
        init(MODEL, DATA, LOSS)
    assert caught.value.message == "ampdoctor.yaml is there already"
    assert file.read_text() == "mine"
    init(MODEL, DATA, LOSS, force=True)
    assert load_config(file).model.target == MODEL


def test_what_does_not_load_is_reported_and_the_file_stays(project: Path) -> None:
    with pytest.raises(LoadError) as caught:
        init("code/models.py:build_modle", DATA)
    assert caught.value.message == (
        "model.target: code/models.py has no 'build_modle'; did you mean 'build_model'?"
    )
    assert caught.value.hint.splitlines()[-1] == (
        "ampdoctor.yaml is written and stays: correct it, then run: ampdoctor scan ampdoctor.yaml"
    )
    assert (project / "ampdoctor.yaml").exists()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("code", "--output code: is a folder"),
        ("no/such.yaml", "--output no/such.yaml: there is no folder {folder}/no"),
    ],
)
def test_where_it_cannot_write(project: Path, output: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        init(MODEL, DATA, output=Path(output))
    assert caught.value.message == message.replace("{folder}", str(project))


def parse(text: str) -> Config:
    return parse_config(text, Path("ampdoctor.yaml"))


def uncommented(text: str) -> str:
    """The config with every key that stands behind a ``# `` taken in."""
    return re.sub(r"^(\s*)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("data", "loss"),
    [("m.py:f", None), ("m.py:f", "m.py:g"), ("batch file.pt", "mse"), ("m.py:f", "none")],
)
def test_the_text_says_the_same_as_the_options(data: str, loss: str | None) -> None:
    options = config_from_options("m.py:build", data, loss)
    assert parse(config_text(options, Path())).model_dump() == options.model_dump()


def test_file_and_builtin_are_written_as_such() -> None:
    config = parse(config_text(config_from_options("m.py:f", "#1.pt", "mse"), Path()))
    assert config.data == DataFile(file="#1.pt")
    assert config.loss == LossBuiltin(builtin="mse")


def test_the_commented_keys_are_valid_and_show_the_defaults() -> None:
    options = config_from_options("m.py:f", "m.py:g", "m.py:h")
    shown = parse(uncommented(config_text(options, Path())))
    assert shown.optimizer is not None and shown.model.checkpoint == "weights.safetensors"
    expected = {**options.model_dump(), "optimizer": shown.optimizer.model_dump()}
    expected["model"]["checkpoint"] = "weights.safetensors"
    assert shown.model_dump() == expected


def test_every_key_is_explained() -> None:
    texts = [
        config_text(config_from_options("m.py:f", data, loss), Path())
        for data in ("m.py:g", "x.pt")
        for loss in ("m.py:h", "mse", None)
    ]
    everything = "\n".join(texts)
    unexplained = {path[-1] for path in KEY_PATHS if f"{path[-1]}:" not in everything} - {"*"}
    assert not unexplained
