"""Scripts of several processes: their scales are compared, and nobody waits for a rank that is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from ampdoctor.diagnose.loop.ranks_scales_differ import check
from ampdoctor.facts.loop import Event, LoopTrace, RankScales
from ampdoctor.facts.site import Source
from ampdoctor.live import ranks
from test_run_libraries import free_port

SAMPLES = Path(__file__).parent.parent / "sample_scripts"


def torchrun(script: Path, target: Path) -> list[dict[str, object]]:
    """The reports of both ranks."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
        str(free_port()), "-m", "ampdoctor", "run", "-o", f"json={target}", str(script),
    ]  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [json.loads(file.read_text()) for file in (target, target.with_name("report.rank1.json"))]


def test_ranks_that_judge_gradients_of_their_own_are_named(tmp_path: Path) -> None:
    first, _ = torchrun(SAMPLES / "ranks_scales_apart.py", tmp_path / "report.json")
    (finding,) = [f for f in first["findings"] if f["code"] == "AMP427"]
    assert finding["message"] == "After the update of step 2 the scale is 512 on rank 1, and 1,024 on rank 0."
    assert finding["evidence"] == {"step": 2, "scales": {"0": 1024.0, "1": 512.0}}
    assert finding["source"]["text"] == "scaler.update()"
    assert first["not_seen"] == []


def test_ranks_that_average_in_backward_have_no_finding(tmp_path: Path) -> None:
    for report in torchrun(SAMPLES / "ranks_scales_together.py", tmp_path / "report.json"):
        assert {f["code"] for f in report["findings"]} == {"AMP420", "AMP901"}
        assert report["steps"] == {"done": 4, "skipped": 1}
        assert report["not_seen"] == []


@pytest.fixture
def alone_of_two(monkeypatch: pytest.MonkeyPatch) -> dist.HashStore:
    """A process group of two, of which this is the first rank, with no other behind it."""
    store = dist.HashStore()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    return store


class Watched:
    """What ``Ranks`` needs of a watch: one scaler with three updates."""

    off = False

    class recorder:
        drafts = tuple({"kind": "update", "scaler": 7, "scale_after": s} for s in (8.0, 8.0, 4.0))
        read = staticmethod(lambda: None)


def test_a_rank_that_does_not_answer_is_said(alone_of_two: dist.HashStore) -> None:
    asked = ranks.Ranks(Watched)  # type: ignore[arg-type]
    asked.exchange(patience=0.0)
    assert asked.not_seen == ("the loss scales of rank 1 (no answer in 0 s)",)
    assert asked.scales == (RankScales(0, 0, 3, ((0, 8.0), (2, 4.0))),)


def test_a_rank_that_ended_long_ago_is_heard(alone_of_two: dist.HashStore) -> None:
    alone_of_two.set("ampdoctor/scales/0/1", json.dumps([[0, 3, [[0, 8.0]]]]))
    asked = ranks.Ranks(Watched)  # type: ignore[arg-type]
    asked.exchange()
    assert asked.not_seen == ()
    assert asked.scales[1] == RankScales(1, 0, 3, ((0, 8.0),))


def test_a_store_whose_process_is_gone_is_said(
    alone_of_two: dist.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Connection reset by peer\nat 0x0")

    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", Gone)
    asked = ranks.Ranks(Watched)  # type: ignore[arg-type]
    asked.exchange()
    assert asked.not_seen == ("the loss scales of other ranks (Connection reset by peer)",)


def test_the_groups_end_inside_the_script_tells_and_ends_it(alone_of_two: dist.HashStore) -> None:
    alone_of_two.set("ampdoctor/scales/0/1", "[]")
    asked, ended = ranks.Ranks(Watched), []  # type: ignore[arg-type]
    asked.destroy(ended.append)("a group of some ranks")
    assert asked.scales == ()
    asked.destroy(ended.append)()
    assert len(asked.scales) == 1
    assert ended == ["a group of some ranks", None]


def loop(*held: RankScales) -> LoopTrace:
    """Three updates of one scaler on the first rank, in lines 1 to 3."""
    updates = tuple(
        Event(at, at, "update", Source("train.py", at + 1, "scaler.update()"), scaler=5, scale_after=scale)
        for at, scale in enumerate((8.0, 8.0, 4.0))
    )
    return LoopTrace("train.py", updates, (), ranks=held)


FIRST = RankScales(0, 0, 3, ((0, 8.0), (2, 4.0)))


@pytest.mark.parametrize(
    ("other", "step"),
    [
        (RankScales(1, 0, 3, ((0, 8.0), (2, 4.0))), None),
        (RankScales(1, 0, 3, ((0, 8.0),)), 2),
        (RankScales(1, 0, 3, ((0, 8.0), (1, 4.0))), 1),
        (RankScales(1, 0, 3, ((0, 4.0),)), 0),
        (RankScales(1, 0, 2, ((0, 8.0),)), None),  # it ended before the first rank's third update
        (RankScales(1, 1, 3, ((0, 4.0),)), None),  # another scaler, which the first rank does not have
    ],
)
def test_the_first_step_whose_update_left_other_scales_is_named(other: RankScales, step: int | None) -> None:
    found = list(check(loop(FIRST, other)))
    assert [f.evidence["step"] for f in found] == ([] if step is None else [step])
    assert [f.source.line for f in found if f.source] == ([] if step is None else [step + 1])


def test_ranks_of_equal_scales_are_named_together() -> None:
    third = RankScales(2, 0, 3, FIRST.changes)
    (finding,) = check(loop(FIRST, RankScales(1, 0, 3, ((0, 8.0),)), third))
    assert finding.message == "After the update of step 2 the scale is 4 on ranks 0, 2, and 8 on rank 1."


def test_what_lies_past_the_changes_that_are_passed_on_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_MOST_CHANGES", 2)
    drafts = [{"kind": "update", "scaler": 1, "scale_after": s} for s in (8.0, 4.0, 4.0, 2.0, 1.0)]
    assert ranks._scales_of(0, drafts) == [RankScales(0, 0, 3, ((0, 8.0), (1, 4.0)))]


POISONED = """
import torch, torch.distributed as dist
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.up(x)
        return self.down(h * h)

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(3):
    x = torch.ones(2, 4)
    if dist.get_rank() == 1:
        x[1] = 2000.0
    with torch.autocast("cpu", dtype=torch.float16):
        loss = net(x).float().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
"""


def test_one_poisoned_rank_of_ddp_is_named_and_the_others_do_not_say_that_all_is_well(tmp_path: Path) -> None:
    """All-reduce spreads rank 1's infinity: every rank skips every step, and only rank 1 holds its cause."""
    (tmp_path / "train.py").write_text(POISONED)
    first, second = torchrun(tmp_path / "train.py", tmp_path / "report.json")
    assert first["script"].endswith("rank 0") and second["script"].endswith("rank 1")
    assert first["steps"] == second["steps"] == {"done": 3, "skipped": 3}
    assert first["summary"].startswith("EVERY STEP IS SKIPPED, and the one examined is finite in itself.")
    fault = second["examined"][0]["report"]["first_fault"]
    assert (fault["op"], fault["samples"], fault["source"]["text"]) == (
        "aten::mul",
        [1],
        "return self.down(h * h)",
    )
