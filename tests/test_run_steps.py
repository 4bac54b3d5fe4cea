"""What counts as a step of a loop, whatever its style; and weights that a script moves by itself."""

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
params = list(model.parameters())


def loss_of():
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    return F.cross_entropy(out.float(), y)


def move(norm):
    return [0.05 * p.grad / norm for p in params]


"""


def script(tmp_path: Path, body: str, scale: str = "1024.0") -> Path:
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("SCALE", scale) + body)
    return path


STYLES = {
    "the same function from two lines": """
def step():
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()

for i in range(6):
    if i < 3:
        step()
    else:
        step()
""",
    "torch.autograd.grad alone": """
for _ in range(6):
    for p, g in zip(params, torch.autograd.grad(loss_of(), params)):
        p.grad = g
    optimizer.step()
""",
    "two optimizers, each with a backward of its own": """
second = torch.optim.SGD([params[0]], lr=0.01)
for _ in range(6):
    loss_of().backward()
    optimizer.step()
    loss_of().backward()
    second.step()
""",
    "an optimizer that is never used": """
spare = torch.optim.Adam(params)
for _ in range(6):
    loss_of().backward()
    optimizer.step()
""",
    "accumulation": """
for i in range(12):
    loss_of().backward()
    if i % 2:
        optimizer.step()
""",
}


@pytest.mark.parametrize("style", STYLES)
def test_steps_are_counted(style: str, tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, STYLES[style]))
    assert report.done == 6
    assert [moment.step for moment in report.timeline] == list(range(6))


def test_a_loop_without_backward_says_that_no_step_was_examined(tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, STYLES["torch.autograd.grad alone"]))
    assert report.examined == ()
    assert report.not_seen == (
        "all steps (no backward was called from the script whose loss could be run again)",
    )


HOOKED = """
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in params}

def apply(p):
    optimizers[p].step()
    optimizers[p].zero_grad()

for p in params:
    p.register_post_accumulate_grad_hook(apply)
del optimizer
for _ in range(3):
    LOSS.backward()
"""


def test_optimizers_that_step_inside_backward_are_counted_and_said_not_to_be_seen(tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, HOOKED.replace("LOSS", "loss_of()")))
    assert (report.done, urgent(report), report.examined) == (3, [], ())
    assert report.not_seen == (
        "3 of the losses (their optimizers step inside backward, from hooks of parameters)",
    )


def test_scaled_gradients_applied_inside_backward(tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, HOOKED.replace("LOSS", "scaler.scale(loss_of())")))
    assert "scaler.scale(loss_of()).backward()" in lines(report)
    assert "AMP404" in urgent(report)


CLIMB = """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    CLIMB
    scaler.step(optimizer)
    scaler.update()
"""
NORM = "torch.stack([p.grad.norm() for p in params]).norm()"
SPOILED = {
    "scaled": f"with torch.no_grad(): [p.add_(e) for p, e in zip(params, move({NORM}))]",
    "unscaled": f"""scaler.unscale_(optimizer)
    with torch.no_grad(): [p.add_(e) for p, e in zip(params, move({NORM}))]""",
    "foreach": f"""scaler.unscale_(optimizer)
    with torch.no_grad(): torch._foreach_add_(params, move({NORM}))""",
    "clipped first": """scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(params, 1.0)
    with torch.no_grad(): torch._foreach_add_(params, [p.grad for p in params])""",
}
SOUND = {
    "checked": f"""scaler.unscale_(optimizer)
    norm = {NORM}
    if norm.isfinite():
        with torch.no_grad(): torch._foreach_add_(params, move(norm))""",
    "decayed by hand": """scaler.unscale_(optimizer)
    logged = params[0].grad.norm()
    with torch.no_grad(): [p.mul_(0.999) for p in params]""",
    "the signs of gradients": """with torch.no_grad(): [p.add_(p.grad.sign(), alpha=1e-4) for p in params]""",
    "frozen and thawed": "[p.requires_grad_(False) for p in params]; [p.requires_grad_() for p in params]",
}


@pytest.mark.parametrize("style", SPOILED)
def test_weights_moved_along_gradients_that_are_not_finite(style: str, tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, CLIMB.replace("CLIMB", SPOILED[style]), "2.0**40"))
    [finding] = [f for f in report.findings if f.code == "AMP413"]
    assert finding.source is not None and "with torch.no_grad()" in finding.source.text


@pytest.mark.parametrize("style", SOUND)
def test_weights_that_stay_finite_beside_such_gradients(style: str, tmp_path: Path) -> None:
    report, _, _ = run(script(tmp_path, CLIMB.replace("CLIMB", SOUND[style]), "2.0**40"))
    assert "AMP413" not in urgent(report)
