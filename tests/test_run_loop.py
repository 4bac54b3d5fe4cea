"""The kinds of faults of a loop in other styles than the samples': faulty ones found, correct ones silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from script_runner import lines, run, urgent

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
other = nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
second = torch.optim.SGD(other.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def loss_of(net=model, gain=1.0):
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x * gain)
    return F.cross_entropy(out.float(), y)


"""

CORRECT = {
    "accumulation": """
for i in range(6):
    scaler.scale(loss_of() / 2).backward()
    if i % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "scaled by hand with the scaler's scale": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of(other)).backward()
    (loss_of() * scaler.get_scale()).backward()
    scaler.step(optimizer)
    scaler.step(second)
    second.zero_grad()
    scaler.update()
""",
    "unscaled and checked by hand": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.unscale_(optimizer)
    if nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
        optimizer.step()
    scaler.update()
""",
    "divided by hand": """
for _ in range(3):
    model.zero_grad()
    scaler.scale(loss_of()).backward()
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())
    optimizer.step()
""",
    "a scaler that is off": """
off = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(3):
    optimizer.zero_grad()
    off.scale(loss_of()).backward()
    off.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    off.step(optimizer)
    off.update()
""",
    "no scaler, clipping": """
for _ in range(3):
    optimizer.zero_grad()
    loss_of().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "an average in FP32": """
average = [p.detach().clone() for p in model.parameters()]
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for a, p in zip(average, model.parameters()):
            a.mul_(0.9999).add_(p, alpha=0.0001)
""",
    "weights clamped after the step": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-1, 1)
""",
    "a scheduler of epochs": """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
for epoch in range(2):
    for _ in range(8):
        optimizer.zero_grad()
        scaler.scale(loss_of()).backward()
        scaler.step(optimizer)
        scaler.update()
    scheduler.step()
""",
    "autocast around the loop without its cache": """
with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of()
        with torch.autocast("cpu", enabled=False):
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "closures": """
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
def closure():
    lbfgs.zero_grad()
    loss = loss_of()
    loss.backward()
    return loss
for _ in range(2):
    lbfgs.step(closure)
""",
    "autograd.grad": """
for _ in range(3):
    loss = loss_of()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    for p, g in zip(model.parameters(), grads):
        p.grad = g
    optimizer.step()
""",
}

FAULTY = {
    "clip in a helper": (
        """
def clip(net):
    return nn.utils.clip_grad_norm_(net.parameters(), 1.0)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    clip(model)
    scaler.step(optimizer)
    scaler.update()
""",
        "AMP401",
        "return nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ),
    "only one of two optimizers unscaled": (
        """
for _ in range(3):
    optimizer.zero_grad(); second.zero_grad()
    scaler.scale(loss_of() + loss_of(other)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([*model.parameters(), *other.parameters()], 1.0)
    scaler.step(optimizer); scaler.step(second)
    scaler.update()
""",
        "AMP401",
        "nn.utils.clip_grad_norm_([*model.parameters(), *other.parameters()], 1.0)",
    ),
    "a second loss without the scale": (
        """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    loss_of(gain=0.5).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        "AMP410",
        "loss_of(gain=0.5).backward()",
    ),
    "unscaled twice in one step": (
        """
optimizer.zero_grad()
scaler.scale(loss_of()).backward()
scaler.unscale_(optimizer)
scaler.unscale_(optimizer)  # again
""",
        "AMP409",
        "scaler.unscale_(optimizer)  # again",
    ),
    "update per micro-batch": (
        """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
for i in range(4):
    scaler.scale(loss_of() / 2).backward()
    if i % 2:
        scaler.step(optimizer)
    scaler.update(2048.0 if i % 2 == 0 else 1024.0)  # too often
    if i % 2:
        optimizer.zero_grad()
""",
        "AMP406",
        "scaler.update(2048.0 if i % 2 == 0 else 1024.0)  # too often",
    ),
}


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(HEAD + body)
    return path


@pytest.mark.parametrize("style", CORRECT)
def test_a_correct_loop_is_left_in_peace(style: str, tmp_path: Path) -> None:
    report, ended, _ = run(script(tmp_path, CORRECT[style]))
    assert (ended.status, ended.said) == (0, "")
    assert urgent(report) == []
    assert report.done > 0


@pytest.mark.parametrize("style", FAULTY)
def test_a_faulty_loop_is_named_at_its_line(style: str, tmp_path: Path) -> None:
    body, code, line = FAULTY[style]
    report, _, _ = run(script(tmp_path, body))
    assert line in lines(report, [code])
    assert {f.code for f in report.findings if f.severity != "info"} == {code}


ACCUMULATED = """
for i in range(8):
    scaler.scale(loss_of() / 4).backward()
    if i % 4 == {at}:
        scaler.unscale_(optimizer)
    if i % 4 == 3:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("at", [0, 1, 2])
def test_any_number_of_backwards_may_follow_an_unscale(at: int, tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, ACCUMULATED.format(at=at)))
    assert [f.code for f in report.findings if f.severity == "error"] == ["AMP419"]
    assert lines(report, ["AMP419"]) == ["scaler.unscale_(optimizer)"]


def test_an_unscale_after_the_last_backward_is_right(tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, ACCUMULATED.format(at=3)))
    assert urgent(report) == []


TAKEN = """
params = list(model.parameters())
for _ in range(3):
    grads = torch.autograd.grad(scaler.scale(loss_of()), params)
    for p, g in zip(params, grads):
        p.grad = GRADIENT
    optimizer.step()
"""


def test_scaled_gradients_that_autograd_grad_made(tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, TAKEN.replace("GRADIENT", "g")))
    assert urgent(report) == ["AMP404"]
    assert lines(report) == ["optimizer.step()"]


def test_gradients_that_autograd_grad_made_and_the_script_divided(tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, TAKEN.replace("GRADIENT", "g / scaler.get_scale()")))
    assert urgent(report) == []


def test_each_optimizers_first_step_is_examined(tmp_path: Path) -> None:
    """The generator of a GAN has its turn in every third step only."""
    body = """
for i in range(6):
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    if i % 3 == 2:
        (1e-9 * loss_of(other)).backward()
        second.step(); second.zero_grad()
"""
    report, _, _ = run(script(tmp_path, body))
    assert [(e.step, e.report.verdict) for e in report.examined] == [(0, "clean"), (2, "gradient-underflow")]
