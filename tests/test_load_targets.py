"""Finding, importing and calling what a target names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ampdoctor.errors import LoadError
from ampdoctor.load import targets
from load_helpers import write


def resolve(folder: Path, target: str) -> object:
    with targets.imported_anew(folder):
        return targets.resolve(target, folder, "model.target")


def failure(folder: Path, target: str) -> LoadError:
    with pytest.raises(LoadError) as caught:
        resolve(folder, target)
    return caught.value


def test_a_file_is_relative_to_the_config_and_imports_its_neighbours(tmp_path: Path) -> None:
    write(
        tmp_path,
        "code/models.py",
        "import parts\nfrom shared_parts import number\nvalue = parts.number + number",
    )
    write(tmp_path, "code/parts.py", "number = 1")
    write(tmp_path, "shared_parts.py", "number = 2")
    assert resolve(tmp_path, "code/models.py:value") == 3


def test_a_name_may_have_dots(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "class Config:\n    class Small:\n        depth = 2")
    assert resolve(tmp_path, "models.py:Config.Small.depth") == 2


def test_a_module_is_found_in_the_config_s_folder_and_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "conf/package_a/models.py", "value = 1")
    write(tmp_path, "package_b/__init__.py", "")
    write(tmp_path, "package_b/models.py", "value = 2")
    monkeypatch.chdir(tmp_path)
    assert resolve(tmp_path / "conf", "package_a.models:value") == 1
    assert resolve(tmp_path / "conf", "package_b.models:value") == 2


def test_a_file_inside_a_package_may_import_relatively(tmp_path: Path) -> None:
    write(tmp_path, "outer/__init__.py", "")
    write(tmp_path, "outer/inner/__init__.py", "")
    write(tmp_path, "outer/layers.py", "number = 5")
    write(tmp_path, "outer/inner/models.py", "from ..layers import number\nfrom neighbour import other")
    write(tmp_path, "outer/inner/neighbour.py", "other = 6")
    assert resolve(tmp_path, "outer/inner/models.py:number") == 5
    assert resolve(tmp_path, "outer/inner/models.py:other") == 6


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    write(tmp_path, "a/models.py", "value = 'a'")
    write(tmp_path, "b/models.py", "value = 'b'")
    with targets.imported_anew(tmp_path):
        found = [targets.resolve(f"{folder}/models.py:value", tmp_path, "model.target") for folder in "abab"]
    assert found == ["a", "b", "a", "b"]


def test_a_file_named_as_a_library_hides_neither(tmp_path: Path) -> None:
    write(tmp_path, "torch.py", "value = 'mine'")
    assert resolve(tmp_path, "torch.py:value") == "mine"
    assert hasattr(sys.modules["torch"], "Tensor")


@pytest.mark.parametrize("name", ["my-model.py", "v1.2.py", "class.py"])
def test_a_file_name_need_not_be_a_python_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "value = 7")
    assert resolve(tmp_path, f"{name}:value") == 7


def test_targets_in_one_file_share_one_module(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "token = object()")
    write(tmp_path, "data.py", "from models import token")
    with targets.imported_anew(tmp_path):
        first = targets.resolve("models.py:token", tmp_path, "model.target")
        assert targets.resolve("models.py:token", tmp_path, "loss.target") is first
        assert targets.resolve("data.py:token", tmp_path, "data.target") is first
        assert targets.resolve("models:token", tmp_path, "data.target") is first


def test_a_second_load_imports_the_user_s_files_anew_with_all_they_import(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "from namespace_of_mine.parts import value")
    write(tmp_path, "namespace_of_mine/parts.py", "value = 'before'")
    assert resolve(tmp_path, "models.py:value") == "before"
    write(tmp_path, "namespace_of_mine/parts.py", "value = 'after it was edited'")
    assert resolve(tmp_path, "models.py:value") == "after it was edited"


def test_the_next_folder_s_modules_of_the_same_names_are_its_own(tmp_path: Path) -> None:
    for folder in "ab":
        write(tmp_path, f"{folder}/models.py", "from parts import value\nfrom spread.out import name")
        write(tmp_path, f"{folder}/parts.py", f"value = '{folder}'")
        write(tmp_path, f"{folder}/spread/out.py", f"name = '{folder}'")
    for folder in "aba":
        assert resolve(tmp_path / folder, "models.py:value") == folder
        assert resolve(tmp_path / folder, "models.py:name") == folder


def test_the_folder_stays_importable_after_the_load_and_goes_with_the_next(tmp_path: Path) -> None:
    write(tmp_path, "a/models.py", "def late():\n    import imported_late\n    return imported_late.value")
    write(tmp_path, "a/imported_late.py", "value = 3")
    write(tmp_path, "b/models.py", "value = 0")
    late = resolve(tmp_path / "a", "models.py:late")
    assert callable(late)
    assert late() == 3
    sys.modules.pop("imported_late")
    before = list(sys.path)
    resolve(tmp_path / "b", "models.py:value")
    assert str(tmp_path / "a") in before
    assert str(tmp_path / "a") not in sys.path


def test_the_main_block_does_not_run(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "value = 1\nif __name__ == '__main__':\n    raise SystemExit('ran')")
    assert resolve(tmp_path, "models.py:value") == 1


def test_dataclasses_with_postponed_annotations_work(tmp_path: Path) -> None:
    write(
        tmp_path,
        "models.py",
        """
        from __future__ import annotations
        from dataclasses import dataclass
        from typing import ClassVar

        @dataclass
        class Batch:
            kind: ClassVar[str] = "x"
            size: int = 2
        """,
    )
    assert callable(resolve(tmp_path, "models.py:Batch"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("modles.py:x", "model.target: there is no file modles.py in {folder}; did you mean 'models.py'?"),
        ("a/models.py:x", "model.target: there is no folder {folder}/a"),
        ("sub.py:x", "model.target: sub.py is a folder, not a Python file"),
        ("work.ipynb:x", "model.target: work.ipynb is a notebook"),
        (
            "models.py:build_modle",
            "model.target: models.py has no 'build_modle'; did you mean 'build_model'?",
        ),
        ("models.py:zzz", "model.target: models.py has no 'zzz'"),
        ("models.py:Net.dept", "model.target: the class Net has no 'dept'; did you mean 'depth'?"),
        ("modles:x", "model.target: there is no module modles; did you mean 'models'?"),
        ("models.inner:x", "model.target: there is no module models.inner; did you mean 'models'?"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest(tmp_path: Path, target: str, message: str) -> None:
    write(tmp_path, "models.py", "def build_model(): pass\nclass Net:\n    depth = 1")
    (tmp_path / "sub.py").mkdir()
    assert failure(tmp_path, target).message == message.replace("{folder}", str(tmp_path))


def test_each_place_that_was_looked_in_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hint = failure(tmp_path, "modles:x").hint
    assert hint.startswith(f"Looked in {tmp_path}, and among the packages of ")


def test_the_hint_lists_what_the_file_defines(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "from math import sqrt\ndef build_model(): pass\nclass Net: pass\n_x = 1")
    assert failure(tmp_path, "models.py:zzz").hint == "It defines Net, build_model."


def test_an_import_that_raises_shows_the_user_s_traceback_and_not_ours(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "import parts\n")
    parts = write(tmp_path, "parts.py", "def half():\n    return 1 / 0\nhalf()\n")
    error = failure(tmp_path, "models.py:x")
    assert error.message == ("model.target: importing models.py raised ZeroDivisionError: division by zero")
    lines = error.user_traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        f'File "{tmp_path / "models.py"}", line 1, in <module>',
        f'File "{parts}", line 3, in <module>',
        f'File "{parts}", line 2, in half',
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_file_that_failed_to_import_is_not_kept(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "value = 1\nraise RuntimeError")
    assert failure(tmp_path, "models.py:value").message == (
        "model.target: importing models.py raised RuntimeError"
    )
    assert "models" not in sys.modules


def test_the_cause_of_an_exception_is_shown_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        "models.py",
        "try:\n    {}['depth']\nexcept KeyError as e:\n    raise ValueError('no') from e",
    )
    text = failure(tmp_path, "models.py:x").user_traceback
    assert "KeyError: 'depth'" in text
    assert "The above exception was the direct cause of the following exception:" in text
    assert f"ampdoctor{os.sep}load" not in text


def test_a_syntax_error_names_the_line(tmp_path: Path) -> None:
    file = write(tmp_path, "models.py", "x = 1\nif x\n    pass\n")
    error = failure(tmp_path, "models.py:x")
    assert error.message.startswith("model.target: importing models.py raised SyntaxError: expected ':'")
    assert f'File "{file}", line 2' in error.user_traceback


def test_a_missing_package_says_which_python_was_asked(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "import no_such_package_anywhere")
    error = failure(tmp_path, "models.py:x")
    assert error.message == (
        "model.target: importing models.py raised ModuleNotFoundError: "
        "No module named 'no_such_package_anywhere'"
    )
    assert error.hint == (
        f"ampdoctor runs in {sys.executable}; the program's packages must be installed there."
    )


def test_a_program_that_exits_on_import_is_one_message(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "import sys\nsys.exit(3)")
    error = failure(tmp_path, "models.py:x")
    assert error.message == "model.target: importing models.py ends the program: sys.exit(3)"
    assert error.hint == 'Put what runs the program below `if __name__ == "__main__":`.'


def test_ctrl_c_passes_through(tmp_path: Path) -> None:
    write(tmp_path, "models.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        resolve(tmp_path, "models.py:x")


def build(width: int, *, depth: int = 1) -> int:
    return width * depth


def test_a_call_gets_its_arguments_from_kwargs() -> None:
    assert targets.call(build, "m.py:build", "model", {"width": 2, "depth": 3}) == 6


@pytest.mark.parametrize(
    ("kwargs", "message", "hint"),
    [
        ({}, "model.target: m.py:build needs width", "Give it in the config: model.kwargs: {width: ...}"),
        (
            {"width": 1, "dept": 2},
            "model.kwargs.dept: m.py:build has no parameter 'dept'; did you mean 'depth'?",
            "It takes (width: 'int', *, depth: 'int' = 1) -> 'int'.",
        ),
    ],
)
def test_a_call_that_does_not_fit_names_the_argument(kwargs: dict[str, int], message: str, hint: str) -> None:
    with pytest.raises(LoadError) as caught:
        targets.call(build, "m.py:build", "model", kwargs)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_what_cannot_be_called_says_what_it_is() -> None:
    with pytest.raises(LoadError) as caught:
        targets.call(3, "m.py:x", "model", {})
    assert caught.value.message == "model.target: m.py:x is the number 3, not a function"
