"""The design's layer rules, read off the source: one-way flow, leaves stay leaves, output only in cli."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampdoctor.config import load_config
from ampdoctor.store.traces import write_trace
from case_runner import run_config

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "ampdoctor"
FILES = sorted(PACKAGE.rglob("*.py"))

LEAVES = ("ampdoctor.errors", "ampdoctor.facts", "ampdoctor.files", "ampdoctor.version")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "files": (),
    "safe_yaml": ("yaml",),
    "version": (),
    "facts": ("ampdoctor.facts",),
    "scales": (*LEAVES, "ampdoctor.scales"),
    "config": (*LEAVES, "ampdoctor.config", "ampdoctor.safe_yaml", "pydantic", "pydantic_core", "yaml"),
    "load": (
        *LEAVES,
        "ampdoctor.load",
        "ampdoctor.config",
        "ampdoctor.probe.watch.location",
        "torch",
        "numpy",
        "safetensors",
    ),
    "live": (*LEAVES, "ampdoctor.live", "ampdoctor.probe.watch.location", "torch"),
    "probe": (
        *LEAVES,
        "ampdoctor.probe",
        "ampdoctor.scales",
        "ampdoctor.load.workload",
        "ampdoctor.load.traceback",
        "ampdoctor.load.seeds",
        "torch",
        "triton",  # one file, itself imported only where Triton is
    ),
    "diagnose": (*LEAVES, "ampdoctor.diagnose", "ampdoctor.scales"),
    "gate": (*LEAVES, "ampdoctor.gate", "ampdoctor.diagnose", "ampdoctor.scales"),
    "store": (
        *LEAVES,
        "ampdoctor.store",
        "ampdoctor.gate.baseline",
        "pydantic",
        "pydantic_core",
        "safetensors",  # these two in bundles.py alone, itself imported only for bundles
        "torch",
    ),
    "remedy": (
        *LEAVES,
        "ampdoctor.remedy",
        "ampdoctor.probe",
        "ampdoctor.diagnose",
        "ampdoctor.scales",
        "ampdoctor.load.workload",
        "ampdoctor.safe_yaml",
        "torch",
        "yaml",
    ),
    "render": (
        *LEAVES,
        "ampdoctor.remedy.plan",
        "ampdoctor.remedy.prescription",
        "ampdoctor.render",
        "ampdoctor.diagnose",
        "ampdoctor.gate",
        "ampdoctor.scales",
        "rich",
        "junitparser",
        "matplotlib",
        "jinja2",
        "markupsafe",
    ),
    "schemas": (
        *LEAVES,
        "ampdoctor.schemas",
        "ampdoctor.diagnose.report",
        "ampdoctor.diagnose.run_report",
        "ampdoctor.config.schema",
        "ampdoctor.remedy.prescription",
    ),
    "api": (
        *LEAVES,
        "ampdoctor.api",
        "ampdoctor.config",
        "ampdoctor.load",
        "ampdoctor.live",
        "ampdoctor.probe",
        "ampdoctor.diagnose",
        "ampdoctor.gate",
        "ampdoctor.scales",
        "ampdoctor.render",
        "ampdoctor.remedy",
        "ampdoctor.store",
        "torch",
    ),
    "integrations": (*LEAVES, "ampdoctor.api", "torch", "transformers", "lightning"),
    "pytest_plugin": (*LEAVES, "ampdoctor.api", "ampdoctor.load.live", "torch", "pytest"),
    "cli": ("ampdoctor", "typer", "click", "rich", "torch", "yaml"),
}
"""Per layer, everything beyond the standard library that one of its files may import."""

LONG_FILES: dict[str, str] = {}
"""Files that may be longer than 400 lines, as ``tests/x.py``, each with the reason."""


def layer_of(file: Path) -> str:
    layer = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "cli" if layer == "__main__" else layer


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Every module the file imports, also inside functions, with its line."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            assert node.module is not None
            if node.module in ("ampdoctor", "ampdoctor.load"):  # names there are modules: judge each
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"
            else:
                yield node.lineno, node.module


def is_within(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(allowed + ".")


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_layer_may(file: Path) -> None:
    layer = layer_of(file)
    if layer == "__init__":  # the public API: it may name any layer but cli
        allowed: tuple[str, ...] = tuple(f"ampdoctor.{name}" for name in MAY_IMPORT if name != "cli")
    else:
        allowed = MAY_IMPORT[layer]
    wrong = [
        f"{file.relative_to(SOURCE)}:{line} imports {module}"
        for line, module in imports(file)
        if module.partition(".")[0] not in sys.stdlib_module_names
        and not any(is_within(module, name) for name in allowed)
    ]
    assert not wrong


OUTPUT_CALLS = {"print", "exit", "quit", "input"}
OUTPUT_ATTRIBUTES = {"sys.exit", "sys.stdout", "sys.stderr", "os._exit"}


def output(node: ast.AST) -> str:
    """What in this node writes to the terminal or ends the program; '' for nothing."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OUTPUT_CALLS:
        return f"{node.func.id}()"
    if isinstance(node, ast.Attribute) and ast.unparse(node) in OUTPUT_ATTRIBUTES:
        return ast.unparse(node)
    if isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
        return "raise SystemExit"
    return ""


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_only_cli_prints_or_exits(file: Path) -> None:
    if layer_of(file) == "cli":
        return
    nodes = ast.walk(ast.parse(file.read_text()))
    wrong = [f"{getattr(node, 'lineno', 0)}: {output(node)}" for node in nodes if output(node)]
    assert not wrong, f"{file.relative_to(SOURCE)}: {wrong}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_no_exception_is_swallowed_unseen(file: Path) -> None:
    """``except Exception: pass`` and bare ``except:`` hide what went wrong."""
    wrong = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            )
            empty = all(isinstance(line, ast.Pass) for line in node.body)
            if node.type is None or (broad and empty):
                wrong.append(node.lineno)
    assert not wrong, f"{file.relative_to(SOURCE)}: lines {wrong}"


def test_judges_read_no_clock_file_or_device() -> None:
    forbidden = {"time", "datetime", "os", "io", "random", "pathlib", "subprocess", "socket"}
    found = {
        f"{file.relative_to(SOURCE)}:{line} imports {module}"
        for file in FILES
        if layer_of(file) in ("diagnose", "gate", "scales")
        for line, module in imports(file)
        if module.partition(".")[0] in forbidden
    }
    assert not found


def test_files_are_a_page_or_two() -> None:
    root = Path(__file__).parent.parent
    files = [
        *FILES,
        *(file for room in ("tests", "benchmarks", "docs") for file in (root / room).rglob("*.py")),
    ]
    long = {
        str(file.relative_to(root)): lines
        for file in files
        if (lines := len(file.read_text().splitlines())) > 400
    }
    assert set(long) == set(LONG_FILES), long


def test_words_are_types_in_one_place() -> None:
    """What a config may say stands where its keys are; every other word in ``facts.words``."""
    allowed = {PACKAGE / "facts" / "words.py", *(PACKAGE / "config").rglob("*.py")}
    elsewhere = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in FILES
        if file not in allowed
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")
    ]
    assert not elsewhere


def test_every_file_says_what_it_is() -> None:
    texts = {file: file.read_text() for file in FILES}
    silent = [str(file) for file, text in texts.items() if text and not ast.get_docstring(ast.parse(text))]
    assert not silent


@pytest.mark.parametrize(
    "statement",
    [
        "import ampdoctor.facts.trace, ampdoctor.store.traces",
        "import ampdoctor.diagnose.engine, ampdoctor.gate.evaluate, ampdoctor.scales.gradient_view",
        "import ampdoctor.config",
        "import ampdoctor, ampdoctor.pytest_plugin",
        "import ampdoctor.cli.main",
        "import ampdoctor.render",
    ],
)
def test_importing_it_does_not_import_torch(statement: str) -> None:
    code = f"import sys; {statement}; assert 'torch' not in sys.modules, 'torch came along'"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run_without_torch(*arguments: str) -> str:
    """The output of a command line; fails where it did not end well or torch was imported."""
    code = (
        "import sys; from ampdoctor.cli.main import run; status = run(sys.argv[1:]); "
        "assert status == 0, status; assert 'torch' not in sys.modules, 'torch came along'"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_explain_runs_without_torch() -> None:
    assert "AMP101" in run_without_torch("explain", "AMP101")


def test_schema_runs_without_torch() -> None:
    assert '"seed"' in run_without_torch("schema", "config")


def test_report_runs_without_torch(tmp_path: Path) -> None:
    trace, _ = run_config(load_config(PACKAGE.parent.parent / "sample_configs" / "t5_ffn_overflow.yaml"))
    write_trace(trace, tmp_path / "trace.json")
    assert "blocks.1.ff.wo" in run_without_torch("report", str(tmp_path / "trace.json"))


def numbers_without_a_word(file: Path) -> Iterator[str]:
    """Numbers of a module that have a name and no line under it that says where they come from."""
    body = ast.parse(file.read_text()).body
    for line, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        value = getattr(line, "value", None)
        value = value.operand if isinstance(value, ast.UnaryOp) else value
        is_number = isinstance(value, ast.Constant) and type(value.value) in (int, float)
        said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(line, (ast.Assign, ast.AnnAssign)) and is_number and not said:
            yield f"{file.relative_to(SOURCE)}:{line.lineno} {ast.unparse(line)}"


def test_a_threshold_says_where_it_comes_from() -> None:
    judges = [file for file in FILES if layer_of(file) in ("diagnose", "gate", "scales", "facts")]
    assert [wrong for file in judges for wrong in numbers_without_a_word(file)] == []
