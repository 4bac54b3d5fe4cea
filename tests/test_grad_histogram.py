"""``ampdoctor grad-histogram``: what it draws, what it writes as data, and how it refuses."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ampdoctor.probe.scan
from ampdoctor.cli.grad_histogram import parse_scale
from ampdoctor.cli.main import run
from ampdoctor.errors import ConfigError
from ampdoctor.store.traces import write_trace
from grad_histogram_texts import MODEL, SWEEP, UNDERFLOW
from trace_builder import birth, candidate, parameter, record, reference, step, trace


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model, configured without a loss scale, which is the current one."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "scan.yaml").write_text(
        "model: {target: model.py:build_model}\n"
        "data: {target: model.py:build_batch}\n"
        "loss: {target: model.py:compute_loss}\n"
        "precision: {device: cpu, loss_scale: 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command writes to stdout; fails where it does not end well."""
    status = run(["grad-histogram", *arguments])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(output(capsys, *arguments, "--format", "json"))
    return parsed


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> list[str]:
    """The lines on stderr of a command that writes no document."""
    assert run(["grad-histogram", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()


def below_header(text: str) -> str:
    """Without the first lines, which name versions."""
    return text.partition("\n\n")[2]


def flowing(text: str) -> str:
    """The words, wherever lines break."""
    return " ".join(text.split())


# ---------------------------------------------------------------- the terminal


@pytest.mark.usefixtures("project")
def test_the_histogram_at_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "scan.yaml", "--scale", "32")
    assert below_header(text) == UNDERFLOW
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.usefixtures("project")
def test_the_sweep_in_ascii() -> None:
    """As through a pipe whose encoding is not UTF-8."""
    command = [sys.executable, "-m", "ampdoctor", "grad-histogram", "scan.yaml", "--sweep"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    text = done.stdout.decode("ascii")
    assert below_header(text).startswith(SWEEP)
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.usefixtures("project")
def test_a_scale_in_the_window_asks_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    text = flowing(output(capsys, "scan.yaml", "--scale", "2^20"))
    assert "FITS at loss scale 1,048,576. Nothing overflows FP16, and 0.0 % of the gradient elements" in text
    assert "Nothing to do: loss scales 2^9 .. 2^30 work, proven by running it." in text


@pytest.mark.usefixtures("project")
def test_a_scale_past_the_ceiling_overflows(capsys: pytest.CaptureFixture[str]) -> None:
    text = below_header(output(capsys, "scan.yaml", "--scale", "2^32"))
    assert text.startswith(
        " OVERFLOW at loss scale 2^32. 2 of 11 gradient elements leave FP16's range\n"
        " (65,504), in 2 of 4 tensors; at 2^24 none does, and 0.0 % become zero.\n"
    )


@pytest.mark.usefixtures("project")
def test_a_scale_without_room_for_the_margin_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "scan.yaml", "--scale", "2^31")
    assert "2^31 fits with less than 1 bits to spare." in text
    assert "Use a loss scale of 2^24: 2^9 .. 2^30 work" in text


@pytest.mark.usefixtures("project")
def test_a_scale_between_powers_of_two_is_drawn_at_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "scan.yaml", "--scale", "1000")
    assert found["loss_scale"]["wanted"] == 1000
    assert found["loss_scale"]["shown"] == 1024
    assert found["headline"].startswith("FITS at loss scale 1,024 (the power of two next to 1,000).")


@pytest.mark.usefixtures("project")
def test_another_format_is_predicted_and_not_called_proven(capsys: pytest.CaptureFixture[str]) -> None:
    text = flowing(output(capsys, "scan.yaml", "--dtype", "bfloat16", "--scale", "1"))
    assert "Nothing overflows BF16" in text
    assert "work, as these histograms predict" in text
    assert "--dtype bfloat16 --sweep" in text


@pytest.mark.usefixtures("project")
def test_where_nothing_works_the_fp32_pass_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    text = flowing(output(capsys, "scan.yaml", "--set", "loss.target=model.py:compute_huge_loss"))
    assert "Read from the FP32 pass: no FP16 pass is finite at a loss scale of 1 or more." in text
    assert "no loss scale keeps both ends" in text
    assert "compute_huge_loss --dtype bfloat16" in text


@pytest.mark.usefixtures("project")
def test_without_colours_there_is_no_escape(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in output(capsys, "scan.yaml") + output(capsys, "scan.yaml", "--sweep")


# ---------------------------------------------------------------- data


@pytest.mark.usefixtures("project")
def test_json_has_zones_bins_layers_and_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "scan.yaml", "--scale", "32")
    assert found["schema"] == "ampdoctor.gradients/1"
    assert found["judgement"] == "underflow"
    everything = found["all"]
    assert everything["bins"] == [
        {"exponent": -28, "zone": "zero", "elements": 1},
        {"exponent": -25, "zone": "zero", "elements": 6},
        {"exponent": -21, "zone": "subnormal", "elements": 2},
        {"exponent": -11, "zone": "normal", "elements": 2},
    ]
    assert everything["zeros"] == {"in_reference_too": 2, "came_in": 0}
    assert everything["underflow_fraction"] == 7 / 11
    assert [layer["name"] for layer in found["layers"]] == ["", "1", "0"]
    assert found["loss_scale"]["window"] == [2.0**9, 2.0**30]
    assert found["loss_scale"]["verified"] is True
    assert [point["loss_scale"] for point in found["sweep"]] == [2.0**k for k in range(33)]
    assert found["recorded"]["passes"] == [{"batch": 0, "role": "ladder", "loss_scale": 2.0**24}]


@pytest.mark.usefixtures("project")
def test_csv_has_a_row_per_layer_and_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "scan.yaml", "--scale", "32", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    first = [(r["exponent"], r["zone"], r["elements"]) for r in rows if r["layer"] == "0"]
    assert first == [
        ("", "zero in the reference too", "1"),
        ("", "came in as zero", "0"),
        ("-25", "zero", "1"),
        ("-21", "subnormal", "1"),
        ("-11", "normal", "1"),
    ]
    assert sum(int(r["elements"]) for r in rows if r["layer"] == "*") == 13


@pytest.mark.usefixtures("project")
def test_csv_of_a_sweep_has_a_row_per_scale(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "scan.yaml", "--sweep", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 33
    assert rows[9] == {
        "loss_scale": "512",
        "exponent": "9",
        "underflow_fraction": "0.0",
        "bound": "",
        "overflowing_tensors": "0",
        "overflowed_elements": "0",
        "works": "true",
    }
    assert [r["exponent"] for r in rows if r["works"] == "true"] == [str(k) for k in range(9, 31)]


@pytest.mark.usefixtures("project")
def test_layers_and_kinds_select(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "scan.yaml", "--parameters", "--layer", "1", "--scale", "32")
    assert found["selection"] == {"kind": "parameters", "layers": ["1"]}
    assert [(layer["name"], layer["flushed"]) for layer in found["layers"]] == [("1.weight", 4)]


def test_a_file_takes_the_place_of_stdout(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "scan.yaml", "--scale", "32", "-o", "out.txt") == ""
    assert below_header((project / "out.txt").read_text()) == UNDERFLOW


# ---------------------------------------------------------------- what it runs


@pytest.mark.usefixtures("project")
def test_it_makes_the_passes_of_a_scan_and_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scales: list[float] = []
    run_pass = ampdoctor.probe.scan.run_pass

    def counting(workload: Any, batch: Any, precision: Any, *arguments: Any) -> Any:
        scales.append(precision.loss_scale)
        return run_pass(workload, batch, precision, *arguments)

    monkeypatch.setattr(ampdoctor.probe.scan, "run_pass", counting)
    assert run(["scan", "scan.yaml"]) == 0
    of_scan = list(scales)
    scales.clear()
    capsys.readouterr()
    output(capsys, "scan.yaml", "--scale", "2^3", "--dtype", "bfloat16", "--sweep")
    assert scales == of_scan != []


def test_a_saved_trace_gives_the_same_without_torch(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", "scan.yaml", "--save", "trace.json"]) == 0
    capsys.readouterr()
    code = (
        "import sys; from ampdoctor.cli.main import run; status = run(sys.argv[1:]); "
        "assert status == 0, status; assert 'torch' not in sys.modules, 'torch came along'"
    )
    arguments = ["grad-histogram", "--trace", "trace.json", "--scale", "32"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    same = UNDERFLOW.replace("grad-histogram scan.yaml", "grad-histogram --trace trace.json")
    assert below_header(done.stdout.decode()) == same


@pytest.mark.usefixtures("project")
def test_without_a_config_the_next_command_names_the_functions(capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["--model", "model.py:build_model", "--data", "model.py:build_batch"]
    loss = ["--loss", "model.py:compute_loss", "--set", "precision.loss_scale=1"]
    text = output(capsys, *targets, *loss)
    assert " ".join(["ampdoctor grad-histogram", *targets, *loss, "--sweep"]) in flowing(text)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--format", "xml"], "error: --format xml: no such format"),
        (["--dtype", "float15"], "error: --dtype float15: no such format"),
        (["--scale", "big"], "error: --scale big: not a loss scale"),
        (["--scale", "0"], "error: --scale 0: not a loss scale"),
        (["--scale", "2^99"], "error: --scale 2^99: not a loss scale"),
        (["--activations", "--parameters"], "error: --activations and --parameters exclude each other"),
        (["--layer", "decoder"], "error: --layer decoder: no gradient is rounded in a module of that name"),
        (["-o", "no/where.txt"], "error: --output no/where.txt: there is no directory "),
        (["--set", "loss=none"], "error: loss: none leaves no gradients"),
        (["--top", "-1"], "error: Invalid value for '--top'"),
    ],
    ids=["format", "dtype", "word", "zero", "huge", "kinds", "layer", "file", "forward only", "top"],
)
@pytest.mark.usefixtures("project")
def test_a_wrong_command_line_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert refusal(capsys, "scan.yaml", *arguments)[-1].startswith(reason)


@pytest.mark.usefixtures("project")
def test_a_fault_in_forward_is_named_and_ends_with_three(capsys: pytest.CaptureFixture[str]) -> None:
    lines = refusal(capsys, "scan.yaml", "--set", "loss.target=model.py:divide", code=3)
    assert lines[-1].startswith("error: no gradient to show: ")
    assert "hint: ampdoctor scan scan.yaml --set loss.target=model.py:divide says where and why" in lines


@pytest.mark.usefixtures("project")
def test_gradients_that_nothing_rounds_end_with_three(capsys: pytest.CaptureFixture[str]) -> None:
    lines = refusal(capsys, "scan.yaml", "--set", "loss.target=model.py:compute_wide_loss", code=3)
    assert lines[-1] == ("error: no gradient to show: all of them are FP32 and nothing is rounded on the way")


def test_a_trace_of_a_forward_only_scan_ends_with_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forward = trace(passes=(reference(backward_ran=False), candidate(backward_ran=False, parameters=())))
    write_trace(forward, tmp_path / "trace.json")
    lines = refusal(capsys, "--trace", str(tmp_path / "trace.json"), code=3)
    assert lines[-1] == ("error: no gradient to show: the loss depends on no parameter that requires one")


def test_gradients_behind_a_fault_in_forward_are_shown_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An infinity that was absorbed: the gradients are finite, and wrong."""
    sites = (record("fc", "aten::mm", 0, 1.0, phase="backward"),)
    wrong = candidate(loss=9.0, sites=sites, parameters=(parameter("w", relative_error=1.0),))
    silent = birth(reaches_loss=False, reaches_gradients=(), absorbed_at=step("final", "aten::mul", "finite"))
    write_trace(trace(passes=(reference(), wrong), births=(silent,)), tmp_path / "trace.json")
    text = flowing(output(capsys, "--trace", str(tmp_path / "trace.json")))
    assert (
        "Nothing overflows FP16, and 0.0 % of the gradient elements become zero; but the fault is in forward."
        in text
    )
    assert "These gradients follow from a fault in forward, see to that first: OVERFLOW in forward" in text


def test_a_trace_and_a_model_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(trace(), tmp_path / "trace.json")
    lines = refusal(capsys, "--trace", str(tmp_path / "trace.json"), "--model", "model.py:build_model")
    assert lines[-1].startswith("error: --trace runs nothing")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024.0), ("65,536", 65536.0), ("1e4", 1e4), ("2^10", 1024.0), ("2**-3", 0.125), ("0.5", 0.5)],
)
def test_scales_can_be_written_in_several_ways(text: str, value: float) -> None:
    assert parse_scale(text) == value


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "2^", "2^9999", "0x10"])
def test_what_is_no_scale_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a loss scale"):
        parse_scale(text)


# ---------------------------------------------------------------- pictures


@pytest.mark.usefixtures("project")
def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    lines = refusal(capsys, "scan.yaml", "--png", "out.png")
    assert lines == [
        'hint: pip install "ampdoctor[plots]"',
        "error: --png needs matplotlib, which is not installed",
    ]


@pytest.mark.parametrize("more", [[], ["--sweep"], ["--dtype", "float8_e5m2"]], ids=["bins", "sweep", "fp8"])
def test_pictures_are_drawn(project: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    pytest.importorskip("matplotlib")
    output(capsys, "scan.yaml", "--scale", "32", "--png", "a.png", "--svg", "a.svg", *more)
    assert (project / "a.png").read_bytes().startswith(b"\x89PNG")
    svg = (project / "a.svg").read_text()
    assert "UNDERFLOW at loss scale 32." in svg
    assert re.search(r"\d{4}-\d{2}-\d{2}T", svg) is None  # no date: the same run gives the same file


def test_a_trace_without_layers_worth_a_table_draws_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = (record("fc", "aten::mm", 0, 1.0, phase="backward"),)
    write_trace(trace(passes=(reference(), candidate(sites=sites))), tmp_path / "trace.json")
    text = output(capsys, "--trace", str(tmp_path / "trace.json"))
    assert "Layers" not in text
    assert "Largest    fc Linear" in text
