"""``device: cuda`` without a GPU: a device of that name in host memory, with autograd's real device threads.

It shows which thread and module an op belongs to, how devices mix and what autocast does; not CUDA's kernels.
Each test runs in a process of its own: numbers that threads count have a history.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest
import torch

from case_runner import model_cases

FOLDER = Path(__file__).parent / "host_cuda"
ROOT = Path(torch.__file__).parent
ROOT_OF_THE_PROJECT = Path(__file__).parent.parent

Ask = Callable[..., Any]
Told = Callable[[str], Any]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device, compiled once for all workers of a session."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler (g++)")
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("needs a CPU build of torch: a CUDA build has devices of its own")
    worker = os.environ.get("PYTEST_XDIST_WORKER") is not None
    folder = tmp_path_factory.getbasetemp().parent if worker else tmp_path_factory.getbasetemp()
    built = folder / "device.so"
    with (folder / "device.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not built.exists():
            abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
            command = [
                compiler, "-std=c++20", "-O0", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
                f"-I{ROOT}/include", f"-I{ROOT}/include/torch/csrc/api/include", str(FOLDER / "device.cpp"),
                "-o", str(built), f"-L{ROOT}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{ROOT}/lib",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
    return built


@pytest.fixture
def ask(library: Path) -> Ask:
    """What a fresh process says: ``scan`` or ``case`` and names, ``{name: {"cpu": ..., "cuda": ...}}``; or
    ``scenario`` and names, ``{name: answer}``."""

    def in_a_process(*arguments: str) -> Any:
        environment = {**os.environ, "HOST_CUDA": str(library), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(FOLDER / "child.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert "ANSWER" in done.stdout, done.stderr[-2000:]
        return json.loads(done.stdout.rpartition("ANSWER")[2])

    return in_a_process


TOGETHER = (
    (
        "other_attention_kernels",
        "attention_next_to_an_overflow",
        "attention_next_to_its_formula",
        "overflow_behind_attention_next_to_its_formula",
        "overflow_in_attention_itself",
        "two_devices",
        "memory_in_a_rerun",
        "waits_of_a_watched_loop",
    ),
    (
        "memory_in_a_scan",
        "memory_where_drift_is_looked_for",
        "memory_in_training",
        "memory_in_steps_before_a_scan",
        "memory_in_a_prescription",
    ),
    ("generators_after_a_scan", "draws_of_every_pass"),
    ("passes_without_values", "sampled_passes_without_values"),
)
"""Scenarios that do not care what their process did before: it takes four seconds to start one. The others,
and those that depend on the sequence numbers of autograd's threads, have a process of their own."""


@pytest.fixture
def told(ask: Ask, library: Path) -> Told:
    """What a scenario gives; asked once in a session, whichever worker needs it first."""

    def of(name: str) -> Any:
        names = next((group for group in TOGETHER if name in group), (name,))
        kept = library.with_name(f"{names[0]}.json")
        with kept.with_suffix(".lock").open("w") as lock:
            flock(lock, LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(ask("scenario", *names)))
        return json.loads(kept.read_text())[name]

    return of


@pytest.mark.parametrize("how", ["plain", "reentrant", "non-reentrant"])
def test_a_fault_in_backward_is_blamed_on_its_own_module(how: str, ask: Ask) -> None:
    answer = ask("scan", how)[how]
    assert answer["cuda"]["device"] == "cuda"
    for device in ("cpu", "cuda"):
        assert answer[device]["verdict"] == "backward-undefined"
        assert answer[device]["fault"][:2] == ["backward", "blocks.2.b"]
        assert answer[device]["line"] == "return torch.sqrt((x - x.detach()).square())"
    assert answer["cuda"]["fault"] == answer["cpu"]["fault"]
    assert answer["cuda"]["sites"] == answer["cpu"]["sites"]


def test_every_backward_op_of_a_gradient_penalty_has_its_module_and_line(ask: Ask) -> None:
    answer = ask("scan", "gradient penalty")["gradient penalty"]
    assert answer["cuda"]["sites"] == answer["cpu"]["sites"]
    assert sum(site[0] == "backward" for site in answer["cuda"]["sites"]) > 50


@pytest.mark.parametrize(
    "starts", ["cuda_starts_with_the_scan", "cuda_starts_in_a_pass_on_the_host", "cuda_starts_after_the_scan"]
)
def test_a_scan_takes_no_draw_from_a_cuda_that_had_not_started(starts: str, told: Told) -> None:
    drawn, expected = told(starts)
    assert drawn == expected


def test_the_generators_of_every_device_are_as_they_were(told: Told) -> None:
    assert told("generators_after_a_scan") == [True, True, True]


def test_an_op_that_is_run_once_more_draws_from_its_own_generator_and_leaves_it(told: Told) -> None:
    births, (first, *others) = told("draws_of_every_pass")
    assert births == ["aten::normal_"]
    assert 0.0 in first and 2.0 in first
    assert others and all(drawn == first for drawn in others)


SCAN = ["FP32 reference, batch 0", "float16 candidate, batch 0"]
STAGES = {
    "memory_in_a_scan": [*SCAN, "second look, batch 0", "loss scale 1, batch 0", "optimizer step 0"],
    "memory_where_drift_is_looked_for": [
        *SCAN, "float64 reference, batch 0", "batch 0 without recording", "where batch 0 parts from FP32",
        "optimizer step 0",
    ],
    "memory_in_training": ["step 0, loss scale 1.67772e+07", "the same in FP32, step 0"],
    "memory_in_steps_before_a_scan": ["training, step 0"],
    "memory_in_a_prescription": [
        *SCAN, "second look, batch 0", "loss scale 1, batch 0", "float64 reference, batch 0",
        "where batch 0 parts from FP32", "optimizer step 0", "trial: BF16 for all", "trial: FP32 for loud",
        "gradients that come into each module, in FP32", "trial: a scale of its own for faint", "trial 1",
        "batch 0 without recording", "operations of each module", "bfloat16 candidate, batch 0",
        "ranges of each module's values, in FP32",
    ],
}  # fmt: skip
"""The stages of each measurement at which memory is made to run out: the first of each kind, in order."""


@pytest.mark.parametrize("measuring", list(STAGES))
def test_memory_that_runs_out_on_the_device_at_any_stage(measuring: str, told: Told) -> None:
    """The stage is named. Model and generators are as they were: the process itself asserts it."""
    errors = told(measuring)
    assert list(dict.fromkeys(stage for stage, *_ in errors)) == STAGES[measuring]
    place = r"(, recording aten::\w+|, in (forward|backward) of the (reference|candidate) pass)?"
    said = re.escape(": CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full.")
    for stage, message, hint, code in errors:
        doing = rf"while (measuring|training|searching treatments) \({re.escape(stage)}\)"
        assert re.fullmatch(f"out of memory {doing}{place}{said}", message), (stage, message)
        assert "smaller batch" in hint and "device: cpu" in hint
        assert code == 3


def test_a_float64_rerun_that_the_device_cannot_hold_is_made_on_the_host(told: Told) -> None:
    assert told("memory_in_a_rerun") == [["torch.float64", "cpu", 180_000.0]] * 4


ATTENTION = [["forward", "aten::scaled_dot_product_attention", 0]] + [
    ["backward", "aten::scaled_dot_product_attention_backward", i] for i in range(3)
]


def test_sites_of_attention_pair_whichever_kernel_runs(told: Told) -> None:
    """Flash in the candidate; in the reference, which has no flash, the memory-efficient one."""
    answer = told("other_attention_kernels")
    assert answer["verdict"] == "clean"
    assert answer["births"] == []
    assert answer["sites"]["reference"][:4] == ATTENTION  # and the gradient of a mask that is not there
    assert answer["sites"]["candidate"] == ATTENTION


@pytest.mark.parametrize(
    ("scenario", "verdict", "births"),
    [
        ("attention_next_to_its_formula", "clean", []),
        ("overflow_behind_attention_next_to_its_formula", "forward-overflow", ["aten::mul"]),
    ],
)
def test_a_fused_kernel_next_to_the_formula_of_the_reference(
    scenario: str, verdict: str, births: list[str], told: Told
) -> None:
    """FP32 may have no fused kernel: the candidate's then has no twin, and nothing is made of that."""
    answer = told(scenario)
    assert (answer["verdict"], answer["births"]) == (verdict, births)
    assert answer["sites"]["candidate"] == ATTENTION and answer["sites"]["reference"] == []


def test_a_fault_born_in_the_fused_kernel_next_to_the_formula_of_the_reference(told: Told) -> None:
    """Five gradients of 16,000 add up inside; two samples make the weight one more factor of 2."""
    backward = "aten::scaled_dot_product_attention_backward"
    line = "y = nn.functional.scaled_dot_product_attention(torch.full_like(k, 10), k, v)"
    answers = told("overflow_in_attention_itself")
    for answer, twin in zip(answers, (["finite", 5_000.0], ["absent", None], ["absent", None]), strict=True):
        assert answer == [
            "backward-overflow",
            ["backward", "", backward, line],
            [[backward, "finite", 80_000.0, *twin]],
            4.0,
            ["AMP201"],
        ]


def test_the_padding_of_attention_s_log_sum_exp_is_no_birth(told: Told) -> None:
    answer = told("attention_next_to_an_overflow")
    assert answer["verdict"] == "forward-overflow"
    assert answer["births"] == ["aten::mul"]


def test_a_model_split_over_two_devices_stays_where_it_is_and_is_diagnosed_as_on_the_cpu(told: Told) -> None:
    split, whole = told("two_devices")
    assert split["placed"] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert split["verdict"] == whole["verdict"] == "forward-overflow"
    assert split["fault"] == whole["fault"] == ["forward", "", "aten::mul", "h = h * 1e5 * 1e-5"]


NOT_HERE = {
    "clean_lstm_packed": "the case leaves its lengths to the device",
    "ctc_target_longer_than_input": "a fused GRU cell of CUDA's own",
    "fft_half_pow2": "the kernels are the CPU's, which has no transform in half",
    "nograd_then_grad_mv": "a fused GRU cell of CUDA's own",
}
"""Cases that this device cannot run, and why."""
MAKES_TENSORS = (
    "clean_crf_forward_algorithm",
    "finfo_min_plus_negative_score",
    "marginal_clamp_one_minus_eps",
    "siglip_scale_100",
    "state_in_containers",
)
"""Cases that make tensors without naming a device: made where the model is, as a user of CUDA would."""


@pytest.mark.parametrize("half", [0, 1])
def test_the_cases_get_the_same_diagnosis_on_the_device_and_on_the_cpu(half: int, ask: Ask) -> None:
    slugs = [c.slug for c in model_cases() if c.slug not in NOT_HERE][half::2]
    answers = ask("case", *(f"{slug}+device" if slug in MAKES_TENSORS else slug for slug in slugs))
    for said in answers.values():
        # On CUDA torch's own optimizers step all parameters in one op: foreach is their default there.
        said["cuda"]["fault"] = [
            part.replace("_foreach_", "") for part in said["cuda"]["fault"] or ()
        ] or None
    said_there, expected = (
        {slug: {k: v for k, v in said[device].items() if k != "device"} for slug, said in answers.items()}
        for device in ("cuda", "cpu")
    )
    assert said_there == expected
    assert {said["cuda"]["device"] for said in answers.values()} == {"cuda"}


def test_programs_get_the_same_diagnosis_on_the_device_and_on_the_cpu(ask: Ask) -> None:
    """Checkpoints in each other, gradients in the forward, backwards of the user's own, two devices."""
    answers = ask("program")
    assert len(answers) == 38
    for name, answer in answers.items():
        assert answer["cuda"].pop("device") == "cuda"
        assert answer["cpu"].pop("device") == "cpu"
        assert answer["cuda"] == answer["cpu"], name
    verdicts = Counter(answer["cuda"]["verdict"] for answer in answers.values())
    assert verdicts["backward-undefined"] >= 12 and verdicts["forward-overflow"] >= 9, verdicts
    assert verdicts["no-workable-scale"] >= 5 and verdicts["clean"] <= 6, verdicts


@pytest.mark.parametrize("passes", ["passes_without_values", "sampled_passes_without_values"])
def test_recording_a_pass_waits_for_no_device(passes: str, told: Told) -> None:
    for run in told(passes).values():
        assert (run["raised"], run["backward"], run["crossings"]) == (None, True, {})
        assert run["counted"]["forward"] > 15 and run["counted"]["backward"] >= 25


def test_watching_a_loop_waits_for_no_device(told: Told) -> None:
    """The first step is examined; so is a skipped one (the fourth), where torch itself reads that it is."""
    alone, watched = told("waits_of_a_watched_loop")
    assert alone["fused"]["waits"] == [0] * 6
    assert alone["plain"]["waits"] == [1] * 6
    assert watched["fused"]["waits"][1:] == [0] * 5
    assert [watched["plain"]["waits"][i] for i in (1, 2, 4, 5)] == [1] * 4
    for name in ("fused", "plain"):
        assert watched[name]["skipped"] == [False, False, False, True, False, False]
        assert watched[name]["finite"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_two_ranks_of_a_ddp_run_each_see_their_own_values(device: str, library: Path, tmp_path: Path) -> None:
    """Scanned between training steps, which go on as if nothing had been; with a graph that DDP takes for
    static, and with gradients that are views of its buckets, too."""
    environment = {**os.environ, "HOST_CUDA": str(library), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", FOLDER / "rank.py", str(rank), "2", tmp_path / "store", device],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=240) for rank in ranks]
    assert all("ANSWER" in out for out, _ in said), said
    first, second = (json.loads(out.rpartition("ANSWER")[2]) for out, _ in said)
    assert list(first) == list(second) == ["plain", "static graph", "gradients in buckets"]
    for how in first:
        one, other = first[how], second[how]
        for rank in (one, other):
            assert (rank["scanned on"], rank["parameters on"]) == (device, [device])
        for kind in ("weights", "gradients"):  # broadcast from the first rank, and averaged ever since
            assert one[kind] == other[kind] == first["plain"][kind] and len(one[kind]) == 4
        assert (one["verdict"], one["fault"]) == ("clean", None)
        assert other["verdict"] == "forward-overflow"
        assert other["fault"] == ["", "aten::mul", "h = h * h", [1]]


def test_the_benchmark_for_whoever_has_a_gpu_runs_on_the_device(library: Path, tmp_path: Path) -> None:
    """All of it, small: what it writes is a document of a device, whose passes are the emulation's."""
    out = tmp_path / "cuda.json"
    script = ROOT_OF_THE_PROJECT / "benchmarks" / "on_cuda.py"
    command = [sys.executable, "-W", "ignore", str(FOLDER / "on_the_device.py"), str(script)]
    arguments = ["--device", "cuda", "--small", "--rounds", "1", "-o", str(out)]
    environment = {**os.environ, "HOST_CUDA": str(library), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"wrote {out}\n"), done.stderr[-2000:]
    answer = json.loads(out.read_text())
    assert list(answer) == [
        "schema", "on_a_gpu", "device", "versions", "triton", "steps", "bandwidth", "single_ops", "models",
        "kernel_refusal",
    ]  # fmt: skip
    assert (answer["schema"], answer["device"]) == ("ampdoctor.benchmark.cuda/1", "host memory")
    assert answer["on_a_gpu"] and answer["triton"] is None and answer["kernel_refusal"] == ""
    assert set(answer["steps"]) == set(answer["models"]) == {"language", "vision"}
    for step in answer["steps"].values():
        times = step["seconds"]
        assert set(times) == {"plain_float32", "plain_autocast", "recorded"}
        assert step["to_plain_autocast"] == times["recorded"] / times["plain_autocast"] > 0
    assert [row["dtype"] for row in answer["bandwidth"]] == ["float16", "bfloat16", "float32"]
    for row in answer["bandwidth"]:
        rates = row["gb_per_s"]
        assert rates["fused"] is None and rates["copy"] > 0 and rates["torch"] > 0
    assert len(answer["single_ops"]) == 18
    for name, compared in (*answer["single_ops"].items(), *answer["models"].items()):
        assert compared["paired"] > 10, name
        for kind in ("emulated_only", "real_only", "other_dtype"):
            assert compared[kind]["first"] == [], name
