"""What a scan costs, next to a plain FP32 step: a table, and JSON with ``--json FILE``.

    python benchmarks/figures.py [--rows pass,scan,layers,memory,words,start] [--model small|124m]
                                 [--threads 1] [--rounds 5] [--json FILE]

Every figure but the last three is a ratio to a plain step (forward and backward, no optimizer) that took
turns with it in the same process; medians. ``cpu`` is the time of the process, which other load on the
machine hardly lengthens; ``wall`` is what a user waits. Peaks of memory are of processes of their own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__ampdoctor_calls_user_code__ = True
GIB = 2**20
"""ru_maxrss counts in KiB."""


@dataclass
class Figure:
    """One row of the table."""

    name: str
    aim: float
    cpu: float | None = None
    wall: float | None = None
    other: float | None = None
    """What is no ratio of times: memory, megabytes, seconds."""
    note: str = ""
    """What stands behind the ratio, in absolute numbers."""


Spent = tuple[float, float]
"""(seconds of this process's CPU time, seconds on the clock)"""


def spent(work: Callable[[], Any]) -> Spent:
    """What one call of ``work`` takes."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def in_turns(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Spent]]:
    """Name -> what each round took; a first round warms up and is not among them."""
    found: dict[str, list[Spent]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            took = spent(work)
            if turn:
                found[name].append(took)
    return found


def median(takes: Sequence[Spent]) -> Spent:
    """Of CPU time and of the clock, each on its own."""
    return statistics.median(t[0] for t in takes), statistics.median(t[1] for t in takes)


def ratio(name: str, aim: float, ours: Sequence[Spent], plain: Sequence[Spent]) -> Figure:
    """The medians' ratios."""
    (a, b), (c, d) = median(ours), median(plain)
    return Figure(name, aim, a / c, b / d, note=f"plain step {c:.3f} s CPU")


# -- models


def gpt2(size: str) -> Any:
    """A GPT-2 as a workload: 6 layers of 384 and batch 4 x 128, or the 124 M and batch 2 x 256."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from ampdoctor.load.workload import Workload

    torch.manual_seed(0)
    shape = {"n_embd": 384, "n_layer": 6, "n_head": 6} if size == "small" else {}
    batch, length = (4, 128) if size == "small" else (2, 256)
    model = GPT2LMHeadModel(GPT2Config(n_positions=length, bos_token_id=1, eos_token_id=2, **shape)).train()
    tokens = torch.randint(0, 50257, (batch, length))
    data = {"input_ids": tokens, "labels": tokens}
    return Workload("gpt2", model, (data,), lambda m, b: m(**b).loss)


def layers(count: int, width: int, batch: int) -> Any:
    """That many linear layers with a tanh after each."""
    import torch
    from torch import nn

    from ampdoctor.load.workload import Workload

    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(count // 2) for m in (nn.Linear(width, width), nn.Tanh())))
    return Workload("layers", model, (torch.randn(batch, width),), lambda m, x: m(x).square().mean())


MODELS: dict[str, Callable[[], Any]] = {
    "small": lambda: gpt2("small"),
    "124m": lambda: gpt2("124m"),
    "1000-layers": lambda: layers(1000, 32, 32),
    "300-layers": lambda: layers(300, 64, 4096),
}


def plain_step(workload: Any) -> Callable[[], None]:
    """One FP32 step as a training loop makes it, without the optimizer."""

    def step() -> None:
        workload.model.zero_grad(set_to_none=True)
        workload.step(workload.model, workload.batches[0]).backward()

    return step


def one_pass(workload: Any, role: str) -> Callable[[], None]:
    """A recorded pass, read back."""
    import torch

    from ampdoctor.probe.passes.one_pass import run_pass
    from ampdoctor.probe.passes.precision import candidate, reference
    from ampdoctor.probe.plan import Plan
    from ampdoctor.probe.watch.observer import Observer

    cpu = torch.device("cpu")
    precision = reference(cpu) if role == "reference" else candidate(Plan(), cpu, 1024.0)

    def run() -> None:
        made = run_pass(workload, workload.batches[0], precision, 0, Observer)
        assert made.raised is None and made.backward_ran
        made.observer.records()

    return run


def whole_scan(workload: Any, search: bool = True) -> Any:
    """The trace of a scan as its defaults are."""
    from ampdoctor.probe.plan import Plan
    from ampdoctor.probe.scan import probe

    return probe(workload, replace(Plan(device="cpu", scaler="dynamic"), search_scale=search))


# -- rows


def passes(model: str, rounds: int) -> list[Figure]:
    """A reference and a candidate pass."""
    workload = MODELS[model]()
    takes = in_turns(
        {
            "plain": plain_step(workload),
            "reference": one_pass(workload, "reference"),
            "candidate": one_pass(workload, "candidate"),
        },
        rounds,
    )
    return [
        ratio("reference pass / plain step", 1.5, takes["reference"], takes["plain"]),
        ratio("candidate pass / plain step", 2.0, takes["candidate"], takes["plain"]),
    ]


def scans(model: str, rounds: int) -> list[Figure]:
    """A whole scan, and of it each loss scale that is run besides the first."""
    workload = MODELS[model]()
    assert workload.step(workload.model, workload.batches[0]).isfinite()
    ladders = len(whole_scan(workload).scale_runs) - 1
    takes = in_turns(
        {
            "plain": plain_step(workload),
            "scan": lambda: whole_scan(workload),
            "without": lambda: whole_scan(workload, search=False),
        },
        rounds,
    )
    rest = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(takes["scan"], takes["without"], strict=True)]
    further = [(cpu / max(1, ladders), wall / max(1, ladders)) for cpu, wall in rest]
    each = ratio("each further loss scale / plain step", 1.5, further, takes["plain"])
    each.note += f", {ladders} scales run"
    return [
        each,
        ratio(f"whole scan of a clean GPT-2 ({model}) / plain step", 8, takes["scan"], takes["plain"]),
    ]


def many_layers(rounds: int) -> list[Figure]:
    """A thousand small layers."""
    workload = MODELS["1000-layers"]()
    works = {"plain": plain_step(workload), "candidate": one_pass(workload, "candidate")}
    takes = in_turns(works | {"scan": lambda: whole_scan(workload)}, rounds)
    return [
        ratio("1,000 small layers: candidate / plain step", 12, takes["candidate"], takes["plain"]),
        ratio("1,000 small layers: whole scan / plain step", float("nan"), takes["scan"], takes["plain"]),
    ]


def peak(model: str, what: str, threads: int) -> int:
    """KiB, of a process that takes plain steps or scans once, imports and model included."""
    command = [sys.executable, __file__, "--peak", what, "--model", model, "--threads", str(threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(model: str, threads: int) -> list[Figure]:
    """Peaks of a scan over those of two plain steps."""
    found = []
    for of, aim in ((model, 1.5), ("300-layers", 1.3)):
        plain, scan = peak(of, "plain", threads), peak(of, "scan", threads)
        note = f"{scan / GIB:.2f} GiB for {plain / GIB:.2f}"
        found.append(Figure(f"peak memory of scan / plain steps ({of})", aim, other=scan / plain, note=note))
    return found


def report_peak(model: str, what: str) -> None:
    """Prints this process's peak."""
    workload = MODELS[model]()
    if what == "plain":
        step = plain_step(workload)
        step()
        step()
    else:
        whole_scan(workload)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def words() -> list[Figure]:
    """Judging a trace of many backward tensors; the JSON of many modules."""
    import torch
    from torch import nn

    from ampdoctor.diagnose.engine import diagnose
    from ampdoctor.load.workload import Workload
    from ampdoctor.render.json_report import render as json_text
    from ampdoctor.render.options import Options

    deep = whole_scan(layers(1500, 8, 4))
    backward = sum(r.site.phase == "backward" for p in deep.passes if p.role == "candidate" for r in p.sites)
    seconds = min(spent(lambda: diagnose(deep))[0] for _ in range(3))
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2000)))
    many = whole_scan(Workload("modules", blocks, (torch.randn(4, 8),), lambda m, x: m(x).square().mean()))
    text = json_text(diagnose(many), Options())
    return [
        Figure(f"diagnose of {backward:,} backward tensors, s", 0.3, other=seconds),
        Figure("JSON of 2,000 modules, MB", 5, other=len(text) / 1e6),
    ]


def starts(rounds: int) -> list[Figure]:
    """Commands that import no torch, over starting Python."""
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "--help": [sys.executable, "-m", "ampdoctor", "--help"],
        "explain": [sys.executable, "-m", "ampdoctor", "explain", "AMP101"],
    }

    def run(command: list[str]) -> Spent:
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - wall
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds

    takes: dict[str, list[Spent]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            takes[name].append(run(command))
    found = [ratio(f"ampdoctor {n} / starting Python", a, takes[n], takes["python"]) for n, a in _STARTS]
    return [replace(f, note=f"starting Python {median(takes['python'])[0]:.3f} s CPU") for f in found]


_STARTS = (("--help", 12.0), ("explain", 15.0))


def table(figures: Sequence[Figure]) -> str:
    """The rows, aligned."""
    lines = [f"{'figure':58} {'aim':>6} {'cpu':>7} {'wall':>7} {'value':>7}  note"]
    for f in figures:
        numbers = [f"{v:7.2f}" if v is not None else " " * 7 for v in (f.cpu, f.wall, f.other)]
        lines.append(f"{f.name:58} {f.aim:6.2f} {' '.join(numbers)}  {f.note}")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="pass,scan,layers,memory,words,start")
    parser.add_argument("--model", choices=list(MODELS), default="124m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="a file to write the figures to as well")
    parser.add_argument("--peak", choices=["plain", "scan"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    if options.peak:
        report_peak(options.model, options.peak)
        return
    rows: dict[str, Callable[[], list[Figure]]] = {
        "pass": lambda: passes(options.model, options.rounds),
        "scan": lambda: scans(options.model, options.rounds),
        "layers": lambda: many_layers(options.rounds),
        "memory": lambda: memory(options.model, options.threads),
        "words": words,
        "start": lambda: starts(2 * options.rounds),
    }
    figures = [figure for row in options.rows.split(",") for figure in rows[row]()]
    print(f"torch {torch.__version__}, {options.threads} thread(s), GPT-2 {options.model}")
    print(table(figures))
    if options.json:
        text = json.dumps([asdict(f) for f in figures], indent=1)
        Path(options.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
