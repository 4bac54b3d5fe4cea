"""The commands: documents on stdout, one clear reason last on stderr, the documented exit codes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampdoctor.cli.main import run
from ampdoctor.store.traces import read_trace, write_trace
from ampdoctor.version import VERSION
from trace_builder import birth, candidate, parameter, reference, trace

MODEL = """\
import torch

print("the model prints on import")


def build_model():
    return torch.nn.Linear(4, 2)


def build_batch():
    return torch.ones(3, 4)


def compute_loss(model, batch):
    print("and in its loss")
    return model(batch).float().square().mean()


def interrupt(model, batch):
    raise KeyboardInterrupt
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, which is the current one."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "scan.yaml").write_text(
        "model: {target: model.py:build_model}\n"
        "data: {target: model.py:build_batch}\n"
        "loss: {target: model.py:compute_loss}\n"
        "precision: {device: cpu}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A trace of an overflow, in a file."""
    sick = candidate(loss=math.nan, parameters=(parameter("w", nan=100, absmax=None),))
    path = tmp_path / "trace.json"
    write_trace(trace(births=(birth(),), passes=(reference(), sick)), path)
    return path


def fails(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int) -> str:
    """The last line on stderr of a command that writes no document."""
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()[-1]


# ---------------------------------------------------------------- scan


def test_scan_prints_the_report_and_keeps_the_users_prints_off_stdout(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", "scan.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(" ampdoctor  scan.yaml\n")
    assert " CLEAN. Nothing overflows at loss scale 65,536, and no gradient is lost.\n" in out
    assert "the model prints on import" in err
    assert "and in its loss" in err


def test_scan_needs_no_config(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--model",
        "model.py:build_model",
        "--data",
        "model.py:build_batch",
        "--loss",
        "model.py:compute_loss",
    ]
    assert run(["scan", *options, "--set", "precision.loss_scale=1024", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["environment"]["title"] == "model.py:build_model"
    assert document["loss_scale"]["configured"] == 1024.0


def test_scan_without_arguments_takes_the_config_of_the_folder(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "scan.yaml").rename(project / "ampdoctor.yaml")
    assert run(["scan"]) == 0
    assert capsys.readouterr().out.startswith(" ampdoctor  ampdoctor.yaml\n")


def test_scan_writes_report_and_trace_to_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "scan.yaml", "-o", "report.json", "--format", "json", "--save", "trace.json.gz"]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads((project / "report.json").read_text())["verdict"] == "clean"
    assert read_trace(project / "trace.json.gz").environment.title == "scan.yaml"
    assert run(["report", "trace.json.gz", "--format", "json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == json.loads((project / "report.json").read_text())


def test_an_interrupted_scan_prints_what_it_has(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "scan.yaml", "--set", "loss.target=model.py:interrupt"]) == 3
    out, err = capsys.readouterr()
    assert " NOT MEASURED. The scan was interrupted" in out
    assert err.splitlines()[-1] == "interrupted: the report covers what was measured until then"


def test_ctrl_c_while_loading_measures_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text("raise KeyboardInterrupt")
    assert fails(capsys, ["scan", "scan.yaml"], 3) == "interrupted: nothing was measured"


def test_nothing_to_scan_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fails(capsys, ["scan"], 2) == "error: nothing to scan: name a config, or a model and its data"


def test_a_config_and_a_model_do_not_go_together(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = fails(capsys, ["scan", "scan.yaml", "--model", "model.py:build_model"], 2)
    assert last == "error: --model and a config do not go together"


def test_the_only_problem_of_a_config_is_the_last_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = fails(capsys, ["scan", "scan.yaml", "--set", "precision.dtyp=float16"], 2)
    assert last == "error: --set precision.dtyp=float16: unknown key; did you mean 'dtype'?"


def test_all_problems_of_a_config_are_listed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "scan.yaml", "--set", "sed=1", "--set", "precision.mode=fp8"]) == 2
    err = capsys.readouterr().err
    assert "  --set sed=1: unknown key; did you mean 'seed'?" in err
    assert "  --set precision.mode=fp8: " in err


def test_a_users_exception_comes_with_their_traceback(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "model.py").write_text("def build_model():\n    return 1 / 0\n")
    assert run(["scan", "scan.yaml"]) == 2
    err = capsys.readouterr().err
    assert 'model.py", line 2, in build_model' in err
    assert "ampdoctor/load" not in err
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("option", ["--output", "--save"])
def test_an_unwritable_path_is_refused_before_the_work(
    option: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "model.py").write_text("raise AssertionError('the model was loaded')")
    assert fails(capsys, ["scan", "scan.yaml", option, "."], 2) == f"error: {option} .: is a directory"
    missing = fails(capsys, ["scan", "scan.yaml", option, "no/report"], 2)
    assert missing == f"error: {option} no/report: there is no directory {project / 'no'}"


def test_an_unknown_format_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails(capsys, ["scan", "scan.yaml", "--format", "xml"], 2) == "error: --format xml: no such format"


# ---------------------------------------------------------------- report


def test_report_renders_a_saved_trace(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(saved)]) == 0
    assert (
        " OVERFLOW in forward. blocks.1.ff.wo leaves the FP16 range; FP32 is fine.\n"
        in capsys.readouterr().out
    )


def test_report_takes_rules_from_a_config(
    saved: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = project / "rules.yaml"
    config.write_text((project / "scan.yaml").read_text() + "rules: {ignore: [AMP9]}\n")
    assert run(["report", str(saved), "--config", str(config), "--format", "json"]) == 0
    assert [f["code"] for f in json.loads(capsys.readouterr().out)["findings"]] == ["AMP101"]


def test_report_of_an_empty_trace_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    write_trace(trace(passes=()), path)
    assert run(["report", str(path)]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: nothing was measured: NOT MEASURED.")


def test_report_refuses_what_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "package.json"
    foreign.write_text("{}")
    assert fails(capsys, ["report", str(foreign)], 2).startswith(f"error: {foreign} is not a trace")
    assert fails(capsys, ["report", str(tmp_path)], 2) == f"error: {tmp_path} is a directory, not a trace"
    missing = tmp_path / "missing.json"
    assert fails(capsys, ["report", str(missing)], 2) == f"error: there is no file {missing}"


# ---------------------------------------------------------------- explain, and the command line itself


@pytest.mark.parametrize("code", ["AMP101", "amp101", "101"])
def test_explain_prints_a_page(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", code]) == 0
    assert capsys.readouterr().out.startswith("AMP101: forward overflow\n\nWhat it means\n")


def test_explain_alone_lists_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "AMP101  error    forward overflow"
    assert lines[-1] == "AMP906  warning  the model as written does not run in FP32"


def test_explain_suggests_a_near_miss(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "AMP1O1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "hint: did you mean AMP101? `ampdoctor explain` lists all rules",
        "error: there is no rule AMP1O1",
    ]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"ampdoctor {VERSION}\n"


def test_no_command_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {command} " in out for command in ("scan", "report", "explain", "init"))


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["scna"], "error: No such command 'scna'."),
        (["scan", "--fromat", "json"], "error: No such option: --fromat"),
        (["report"], "error: Missing argument"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(capsys, arguments, 2).startswith(start)


def test_our_own_bug_is_said_to_be_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("wires crossed")

    monkeypatch.setattr("ampdoctor.diagnose.engine.diagnose", broken)
    monkeypatch.setattr("ampdoctor.cli.report.read_trace", lambda path: trace())
    last = fails(capsys, ["report", "x.json"], 3)
    assert last == "error: this is a bug in ampdoctor (RuntimeError: wires crossed)"
    assert run(["report", "x.json", "--debug"]) == 3
    assert "Traceback (most recent call last)" in capsys.readouterr().err


# ---------------------------------------------------------------- in a process of its own

START = [sys.executable, "-c", "from ampdoctor.cli.main import main; main()"]
HEAVY = ("torch", "yaml", "numpy")


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "AMP101"], ["report", "{saved}"]])
def test_light_commands_import_nothing_heavy(arguments: list[str], saved: Path) -> None:
    arguments = [str(saved) if argument == "{saved}" else argument for argument in arguments]
    code = (
        "import sys; from ampdoctor.cli.main import run; "
        f"assert run({arguments!r}) == 0; "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_no_error(saved: Path) -> None:
    """``ampdoctor report ... | head -1``: the reader leaves, and nobody complains."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*START, "report", str(saved)], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_utf8_gets_ascii(saved: Path) -> None:
    done = subprocess.run(
        [*START, "report", str(saved)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
    )
    assert done.stdout.isascii()


def test_the_last_line_of_a_failing_process_says_why() -> None:
    done = subprocess.run([*START, "explain", "AMP999"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "error: there is no rule AMP999"


def test_what_child_processes_of_the_model_print_is_no_part_of_the_document(project: Path) -> None:
    text = (project / "model.py").read_text()
    (project / "model.py").write_text(
        "import os\n" + text + '\n\nos.write(1, b"from C")\nos.system("echo child")\n'
    )
    done = subprocess.run(
        [*START, "scan", "scan.yaml", "--format", "json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["schema"] == "ampdoctor.report/1"
    assert "from C" in done.stderr and "child" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
def test_a_file_whose_name_is_no_unicode(project: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    (project / name).write_text(MODEL)
    outputs = [f"{kind}=out.{kind}" for kind in ("text", "json", "html", "sarif", "markdown")]
    arguments = [
        "scan",
        "--model",
        f"{name}:build_model",
        "--data",
        f"{name}:build_batch",
        "--format",
        "json",
    ]
    arguments += ["--loss", f"{name}:compute_loss"]
    assert run([*arguments, *(part for output in outputs for part in ("-o", output))]) == 0
    assert len(list(project.glob("out.*"))) == len(outputs)


@pytest.mark.parametrize(
    ("statement", "last"),
    [
        (
            'raise ValueError("\\x1b[31mred\\nsecond")',
            "error: the model raises in FP32 as well: ValueError: \\x1b[31mred\\nsecond",
        ),
        ("raise BaseException('odd')", "error: the scanned code ended the process: BaseException: odd"),
        ("raise Mute", "error: the model raises in FP32 as well: Mute: <exception str() failed>"),
    ],
)
def test_whatever_the_model_raises_ends_in_one_line_and_exit_code_3(
    project: Path, capsys: pytest.CaptureFixture[str], statement: str, last: str
) -> None:
    (project / "model.py").write_text(
        f"{MODEL}\n\nclass Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\n"
        f"\n\ndef compute_loss(model, batch):\n    {statement}\n"
    )
    assert run(["scan", "scan.yaml"]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == last


def test_a_closed_stream_is_no_error(saved: Path) -> None:
    """``2>&-`` and ``>&-``: Python then has None in its place."""
    code = "import sys; sys.stdout = sys.stderr = None; from ampdoctor.cli.main import main; main()"
    for arguments, ends in ((["report", str(saved)], 0), (["explain", "AMP999"], 2)):
        done = subprocess.run([sys.executable, "-c", code, *arguments], check=False)
        assert done.returncode == ends
