"""Correct training scripts in styles of many kinds: none gives anything above information."""

from __future__ import annotations

from pathlib import Path

import pytest

from script_runner import lines, run, urgent
from test_run_loop import script

STYLES = {
    "a gradient penalty by the recipe": """
weights = list(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of()
    scaled = torch.autograd.grad(scaler.scale(loss), weights, create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    penalty = sum((g * inv_scale).square().sum() for g in scaled).sqrt()
    scaler.scale(loss + penalty).backward()
    scaler.step(optimizer)
    scaler.update()
    print(penalty.item())
""",
    "a penalty that is as much scaled as the loss it joins": """
for _ in range(3):
    optimizer.zero_grad()
    scaled = scaler.scale(loss_of())
    grads = torch.autograd.grad(scaled, list(model.parameters()), create_graph=True)
    (scaled + 0.1 * torch.cat([g.flatten() for g in grads]).norm()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "a critic's gradient penalty, of a loss without a scale": """
critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.randn(16, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        score = critic(x)
    (grad,) = torch.autograd.grad(score.float().sum(), x, create_graph=True)
    opt_c.zero_grad()
    scaler.scale(score.float().mean() + ((grad.norm(2, 1) - 1) ** 2).mean()).backward()
    scaler.step(opt_c)
    scaler.update()
""",
    "norms logged after unscale": """
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of()
    scaler.scale(loss).backward()
    grads = [p.grad for p in model.parameters()]
    scaler.unscale_(optimizer)
    total = torch.stack([g.norm() for g in grads]).norm()
    print(f"{total:.3f}", nn.utils.clip_grad_norm_(model.parameters(), 1.0).item(), loss.item())
    scaler.step(optimizer)
    scaler.update()
""",
    "norms divided by the scale before they are logged": """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    print((norm / scaler.get_scale()).item(), norm.item() / scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
    "gradients only asked whether they are finite": """
import math
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if not math.isfinite(norm.item()) or not norm.isfinite().item():
        print("an infinity")
    scaler.step(optimizer)
    scaler.update()
""",
    "one scaler for two optimizers": """
for _ in range(3):
    optimizer.zero_grad(); second.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.scale(loss_of(other)).backward()
    scaler.unscale_(second)
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    scaler.step(optimizer); scaler.step(second)
    scaler.update()
""",
    "a scaler for each of two optimizers": """
scaler_b = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
    second.zero_grad()
    scaler_b.scale(loss_of(other)).backward()
    scaler_b.step(second)
    scaler_b.update()
""",
    "a GAN": """
disc = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt_d = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.9))
bce = F.binary_cross_entropy_with_logits
for _ in range(3):
    with torch.autocast("cpu", dtype=torch.float16):
        fake = model(torch.randn(16, 8))
        real, false = disc(torch.randn(16, 4)).float(), disc(fake.detach()).float()
    opt_d.zero_grad(set_to_none=True)
    scaler.scale(bce(real, torch.ones_like(real)) + bce(false, torch.zeros_like(false))).backward()
    scaler.step(opt_d)
    with torch.autocast("cpu", dtype=torch.float16):
        judged = disc(fake).float()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(bce(judged, torch.ones_like(judged))).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "sharpness-aware, each half checked": """
for _ in range(3):
    optimizer.zero_grad()
    loss_of().backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if not norm.isfinite():
        continue
    climbed = []
    with torch.no_grad():
        for p in model.parameters():
            climbed.append(0.05 * p.grad / (norm + 1e-12))
            p.add_(climbed[-1])
    optimizer.zero_grad()
    loss_of().backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), climbed):
            p.sub_(e)
    optimizer.step()
""",
    "OneCycleLR that waits for the scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**23)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=12)
for _ in range(6):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()
""",
    "resumed with everything": """
import io
def step():
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
step()
file = io.BytesIO()
torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "s": scaler.state_dict()}, file)
file.seek(0)
state = torch.load(file, weights_only=True)
model.load_state_dict(state["m"]); optimizer.load_state_dict(state["o"]); scaler.load_state_dict(state["s"])
for _ in range(2):
    step()
""",
    "clipped by value, with accumulation": """
for i in range(6):
    scaler.scale(loss_of() / 3).backward()
    if (i + 1) % 3 == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
""",
    "BF16 without a scaler": """
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(16, 8))
        loss = F.cross_entropy(out.float(), torch.randint(0, 4, (16,)))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(loss.item(), norm.item())
""",
    "an average kept by torch's own class": """
average = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
)
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
    average.update_parameters(model)
""",
    "workers that load": """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.randn(8), i % 4
if __name__ == "__main__":
    for x, y in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        scaler.scale(F.cross_entropy(out.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a model that torch.compile took": """
quick = torch.compile(model, backend="eager")
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of(quick)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "weights frozen and thawed": """
for step in range(4):
    model[0].requires_grad_(step >= 2)
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "validation between the steps": """
for _ in range(3):
    model.train()
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizer)
    scaler.update()
    model.eval()
    with torch.no_grad():
        print(loss_of().item())
    with torch.inference_mode():
        print(loss_of().item())
""",
    "several losses, one backward each": """
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        shared = model[0](torch.randn(16, 8)).relu()
        a, b = model[2](shared).float().square().mean(), shared.float().mean()
    scaler.scale(a).backward(retain_graph=True)
    scaler.scale(b).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}


@pytest.mark.parametrize("style", STYLES)
def test_a_correct_script_is_left_in_peace(style: str, tmp_path: Path) -> None:
    report, ended, _ = run(script(tmp_path, STYLES[style]))
    assert (ended.status, ended.said) == (0, "")
    assert urgent(report) == []
    assert report.examined, report.not_seen
    assert {e.report.verdict for e in report.examined} == {"clean"}


DDP = """
import torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
wrapped = nn.parallel.DistributedDataParallel(model)
for i in range(4):
    optimizer.zero_grad()
    with wrapped.no_sync() if i % 2 else torch.enable_grad():
        scaler.scale(loss_of(wrapped)).backward()
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
"""


def test_a_script_of_one_rank_is_left_in_peace(tmp_path: Path) -> None:
    report, ended, _ = run(script(tmp_path, DDP))
    assert (ended.status, ended.said) == (0, "")
    assert (urgent(report), report.done) == ([], 4)


FAULTS = {
    "a penalty by way of a helper": (
        """
def penalty_of(scaled, net):
    grads = torch.autograd.grad(scaled, list(net.parameters()), create_graph=True)  # scaled
    return torch.cat([g.flatten() for g in grads]).norm()
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of()
    scaler.scale(loss + 1e-6 * penalty_of(scaler.scale(loss), model)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        "AMP421",
        "grads = torch.autograd.grad(scaled, list(net.parameters()), create_graph=True)  # scaled",
    ),
    "a loss scaled by one scaler and stepped by another": (
        """
another = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(3):
    optimizer.zero_grad()
    another.scale(loss_of()).backward()
    scaler.scale(loss_of(other))
    scaler.step(optimizer)
    scaler.update()
""",
        "AMP422",
        "scaler.step(optimizer)",
    ),
    "norms in a list": (
        """
history = []
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    history.append([float(p.grad.abs().max()) for p in model.parameters()])
    scaler.step(optimizer)
    scaler.update()
""",
        "AMP424",
        "history.append([float(p.grad.abs().max()) for p in model.parameters()])",
    ),
    "the mean of scaled losses": (
        """
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = scaler.scale(loss_of())
    loss.backward()
    losses.append(loss.detach())
    scaler.step(optimizer)
    scaler.update()
print(torch.stack(losses).mean().item())
""",
        "AMP425",
        "print(torch.stack(losses).mean().item())",
    ),
    "update and nothing before it": (
        """
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.update()
""",
        "AMP426",
        "scaler.update()",
    ),
    "backward of a trainer's method under autocast": (
        """
class Trainer:
    @torch.autocast("cpu", dtype=torch.float16)
    def step(self):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(16, 8)).float(), torch.randint(0, 4, (16,)))
        scaler.scale(loss).backward()
trainer = Trainer()
for _ in range(3):
    trainer.step()
    scaler.step(optimizer)
    scaler.update()
""",
        "AMP423",
        "scaler.scale(loss).backward()",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_line(fault: str, tmp_path: Path) -> None:
    body, code, line = FAULTS[fault]
    report, _, _ = run(script(tmp_path, body))
    assert line in lines(report, [code])
    assert {f.code for f in report.findings if f.severity != "info"} == {code}
