"""Configs made to hurt end in one message, and soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampdoctor.config import load_config
from ampdoctor.errors import ConfigError
from config_texts import SMALLEST, failure, parse, problems


def test_torch_counts_devices_with_a_byte() -> None:
    assert parse(SMALLEST, "precision.device=cuda:99").precision.device == "cuda:99"
    assert problems(SMALLEST, "precision.device=cuda:1000") == [
        "--set precision.device=cuda:1000: 'cuda:1000' is not allowed; did you mean 'cuda'? "
        "(allowed: auto, cpu, cuda, cuda:1)"
    ]


@pytest.mark.parametrize("name", ["\\0", "\\ud800", "x" * 256])
def test_a_name_that_no_file_can_have(name: str) -> None:
    text = f'model: {{target: "{name}:build", checkpoint: "a/{name}"}}\ndata: {{file: "{name}"}}\n'
    assert [p.partition(": ")[2].partition(",")[0] for p in problems(text)] == [
        "model.target: no file can have this name",
        "model.checkpoint: no file can have this name",
        "data.file: no file can have this name",
    ]


def test_nesting_past_pythons_stack_is_no_yaml() -> None:
    message = failure("model: " + "[" * 3000).message
    assert message == "config.yaml: not valid YAML: it is nested too deeply"


@pytest.mark.parametrize("value", ["!!bool maybe", '!!int ""', "!!float x", "!!binary x", "1" * 5000])
def test_a_tag_that_its_value_cannot_have(value: str) -> None:
    message = failure(f"{SMALLEST}\nseed: {value}").message
    line = len(SMALLEST.splitlines()) + 2
    assert message.startswith(f"config.yaml:{line}: not valid YAML: ")


def test_merges_of_merges_end() -> None:
    """Three merges on each of 40 lines lead to the one key of the first line along 3 ** 40 ways."""
    lines = [
        "a0: &a0 {x: 1}",
        *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 3)}]}}" for n in range(1, 41)),
    ]
    assert len(problems("\n".join(lines))) == 43


def test_a_file_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: it holds more than 8 MiB"):
        load_config(Path("/dev/zero"))


def test_aliases_of_aliases_are_not_followed_for_ever() -> None:
    """Nine aliases on each of ten lines: 9 ** 10 values in the document, eleven lists in memory."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 11))]
    assert [p.split(": ")[1] for p in problems("\n".join(lines))] == [
        "model",
        "data",
        *(f"a{n}" for n in range(11)),
    ]
