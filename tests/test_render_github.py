"""Annotations for GitHub: ten at most, at their lines, and nothing in a name becomes a command."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ampdoctor.diagnose.gate_result import PASSED, WaiverState
from ampdoctor.diagnose.headline import Headline
from ampdoctor.diagnose.report import Report
from ampdoctor.render import FORMATS, MANY, Options
from hostile import (
    NAMES,
    REPOSITORY,
    clean,
    failing,
    gated,
    many,
    sick,
    unchecked,
    without_source,
)
from trace_builder import source

OPTIONS = Options(base=f"{REPOSITORY}/sub", root=REPOSITORY)
COMMAND = re.compile(r"::(?P<level>\w+) (?P<properties>[^:]*)::(?P<message>.*)")


def lines(*reports: Report, options: Options = OPTIONS) -> list[str]:
    document = MANY["github"](reports, options)
    assert document.endswith("\n")
    return document[:-1].split("\n")


def commands(*reports: Report, options: Options = OPTIONS) -> list[dict[str, str]]:
    """Every annotation as GitHub reads it: split first, unescaped after."""
    found = []
    for line in lines(*reports, options=options):
        if line.startswith("::"):
            match = COMMAND.fullmatch(line)
            assert match is not None, line
            pairs = (pair.partition("=") for pair in match["properties"].split(","))
            properties = {key: unescaped(value, ":,") for key, _, value in pairs}
            found.append({"level": match["level"], **properties, "message": unescaped(match["message"])})
    return found


def unescaped(text: str, more: str = "") -> str:
    for character in f"\r\n{more}%":
        text = text.replace(f"%{ord(character):02X}", character)
    return text


def test_an_annotation_says_where_what_and_what_to_do() -> None:
    assert lines(sick()) == [
        "ampdoctor: sub/t5.yaml: OVERFLOW in forward. blocks.1.ff.wo leaves the FP16 range; FP32 is fine.",
        "::error file=src/model.py,line=33,title=AMP101 forward overflow::"
        "blocks.1.ff.wo   src/model.py:33%0A"
        "The exact value is 66,246; FP16 ends at 65,504. Only sample 0 of 2 does this.%0A"
        'Keep blocks.1.ff.wo in FP32 (torch.autocast("cuda", enabled=False) around it, .float() on its '
        "inputs); "
        "look at that sample first; or train in BF16.%0A"
        "ampdoctor explain AMP101",
    ]


def test_a_clean_report_is_a_line_of_log() -> None:
    assert lines(clean()) == [
        "ampdoctor: healthy.yaml: CLEAN. Nothing overflows at loss scale 65,536, and no gradient is lost."
    ]


def test_ten_are_shown_and_the_others_counted() -> None:
    assert [command["line"] for command in commands(many(12))] == [str(i) for i in range(1, 11)]
    assert lines(many(12))[-1] == "ampdoctor: 2 findings more in the job's summary"
    assert len(commands(many(10))) == 10
    assert lines(many(10))[-1].startswith("::error")


def test_errors_of_any_report_come_before_warnings() -> None:
    warned = replace(many(10), findings=tuple(replace(f, severity="warning") for f in many(10).findings[:10]))
    levels = [command["level"] for command in commands(warned, sick())]
    assert levels == ["error"] + ["warning"] * 9


def test_scans_that_find_the_same_line_share_an_annotation() -> None:
    (command,) = commands(sick(), replace(sick(), config="other.yaml"))
    assert "\nFound by sub/t5.yaml, sub/other.yaml.\n" in command["message"]


def test_a_finding_without_a_line_is_shown_at_the_config() -> None:
    (command,) = commands(without_source())
    assert (command["file"], command["line"]) == ("sub/t5.yaml", "1")


@pytest.mark.parametrize("file", ["/usr/lib/python3/site-packages/lib.py", "<string>", "../outside.py"])
def test_a_line_outside_the_repository_is_shown_at_the_config(file: str) -> None:
    options = Options(base=REPOSITORY, root=REPOSITORY)
    (command,) = commands(sick(at=source(file=file)), options=options)
    assert (command["file"], command["line"]) == ("sub/t5.yaml", "1")
    assert f"{file.rpartition('/')[2]}:33" in command["message"]


def test_without_a_line_and_a_config_it_has_no_place() -> None:
    (command,) = commands(replace(without_source(), config=""))
    assert set(command) == {"level", "title", "message"}


def test_a_relative_file_starts_at_the_base() -> None:
    (command,) = commands(sick(at=source(file="../lib/net.py")))
    assert command["file"] == "lib/net.py"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_makes_no_command(name: str) -> None:
    (command,) = commands(sick(name))
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    assert command["message"].startswith(f"{shown}   src/model.py:33\n")
    assert command["title"] == "AMP101 forward overflow"
    assert len(lines(sick(name))) == 2


@pytest.mark.parametrize("file", ["a,line=1,b.py", "a:b.py", "100%25.py", "a\nb.py", "Ünïcode/ö.py"])
def test_a_files_name_is_one_property(file: str) -> None:
    (command,) = commands(sick(at=source(file=f"{REPOSITORY}/{file}")))
    assert command["file"] == file
    assert command["line"] == "33"


def test_nothing_measured_is_an_error() -> None:
    nothing = replace(clean(), verdict="not-measured", headline=Headline("NOT MEASURED.", "Nothing ran."))
    (command,) = commands(nothing)
    assert command == {
        "level": "error",
        "file": "healthy.yaml",
        "line": "1",
        "title": "nothing was measured",
        "message": "healthy.yaml: NOT MEASURED. Nothing ran.",
    }


def test_what_a_gate_could_not_check_is_an_error() -> None:
    (command,) = commands(unchecked())
    assert command == {
        "level": "error",
        "file": "healthy.yaml",
        "line": "1",
        "title": "AMP206 a gradient drifts from the reference",
        "message": "fc\nThere is no reference.\nampdoctor explain AMP206",
    }


def test_the_log_says_what_a_gate_says() -> None:
    assert lines(failing(sick()))[0].startswith("ampdoctor: sub/t5.yaml: gate failed. OVERFLOW in forward.")
    assert lines(gated(clean(), PASSED))[0].startswith("ampdoctor: healthy.yaml: gate passed. CLEAN.")


def test_a_waiver_that_does_nothing_any_more_is_a_warning_at_the_config() -> None:
    used, expired = (WaiverState("AMP103", "fc", "known", "2027-01-31", s, 1) for s in ("used", "expired"))
    (command,) = commands(replace(clean(), waivers=(used, expired)))
    assert command == {
        "level": "warning",
        "file": "healthy.yaml",
        "line": "1",
        "title": "waiver expired",
        "message": "AMP103 fc expired on 2027-01-31 (known): what it covered counts again",
    }


def test_one_report_is_rendered_like_several() -> None:
    assert FORMATS["github"](sick(), OPTIONS) == MANY["github"]([sick()], OPTIONS)
