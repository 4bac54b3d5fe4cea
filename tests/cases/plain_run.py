"""A case run with plain torch, in FP32 and in its own MODE: loss, gradients, buffers, optimizer steps, loss scales."""
import importlib.util
import math
import random

import torch

from first_event import Tracer, bad


def load(path):
    spec = importlib.util.spec_from_file_location("case_" + path.parent.name, path)
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m


def cast(x, dtype):
    if isinstance(x, torch.Tensor):
        return x.to(dtype) if x.is_floating_point() else x
    if isinstance(x, dict):
        return {k: cast(v, dtype) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        y = [cast(v, dtype) for v in x]
        return type(x)(*y) if hasattr(x, "_fields") else type(x)(y)
    return x


def seed():
    torch.manual_seed(1234)
    random.seed(1234)


class nullctx:
    def __enter__(self):
        return self

    def __exit__(self, *a):
        return False


class own_autocast_off:
    """Autocast regions that the user's code opens itself are closed in the FP32 reference."""

    def __enter__(self):
        self.enter = enter = torch.autocast.__enter__

        def closed(region):
            was, region._enabled = region._enabled, False
            try:
                return enter(region)
            finally:
                region._enabled = was

        torch.autocast.__enter__ = closed

    def __exit__(self, *a):
        torch.autocast.__enter__ = self.enter
        return False


def context(mode):
    if mode == "reference":
        return own_autocast_off()
    if mode == "autocast-fp16":
        return torch.autocast("cpu", dtype=torch.float16)
    if mode == "autocast-bf16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return nullctx()


def cast_to(batch, mode):
    return cast(batch, {"half": torch.float16, "bf16-pure": torch.bfloat16}[mode]) if mode in ("half", "bf16-pure") else batch


def build(case, mode, reference=False):
    model, batch = case.build_model(), case.build_batch()
    if reference:
        model, batch = model.float(), cast(batch, torch.float32)
    elif mode == "half":
        model, batch = model.half(), cast(batch, torch.float16)
    elif mode == "bf16-pure":
        model, batch = model.bfloat16(), cast(batch, torch.bfloat16)
    return model, batch


def run_once(case, mode, scale, path, reference=False, trace=True, steps=0):
    """One forward/backward (+ optional optimizer steps). Returns a dict of observations."""
    seed()
    model, batch = build(case, mode, reference)
    r = dict(loss=None, loss_dtype="", exc="", bad_grads=[], grads={}, events=[], nonfinite_params=[],
             bad_buffers=[])
    bad0 = {n for n, b in model.named_buffers() if bad(b)}
    tr = Tracer(path)
    tr.watch(model)
    seed()
    try:
        with tr if trace else nullctx():
            with context("reference" if reference else mode):
                loss = case.compute_loss(model, batch)
            r["loss"] = float(loss.detach())
            r["loss_dtype"] = str(loss.dtype).replace("torch.", "")
            tr.phase = "backward"
            (loss * torch.tensor(float(scale))).backward()
    except Exception as e:  # noqa: BLE001
        r["exc"] = f"{type(e).__name__}: {str(e).splitlines()[0][:200]}"
    tr.unwatch()
    r["events"] = tr.events
    r["n_ops"] = tr.n_ops
    for n, p in model.named_parameters():
        if p.grad is not None:
            g = p.grad.detach().float() / scale
            r["grads"][n] = g
            if not torch.isfinite(g).all():
                r["bad_grads"].append(n)
    for n, b in model.named_buffers():
        if bad(b) and n not in bad0:
            r["bad_buffers"].append(n)
    if steps and hasattr(case, "build_optimizer") and not r["exc"]:
        tr.phase = "optimizer"
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        opt = case.build_optimizer(model)
        seq = case.build_batches() if hasattr(case, "build_batches") else [batch]
        r["moved_by_step"], r["loss_by_step"] = [], [r["loss"]]
        for i in range(steps):
            if i:
                batch = seq[i % len(seq)]
                if hasattr(case, "build_batches"):
                    batch = cast(batch, torch.float32) if reference else cast_to(batch, mode)
                opt.zero_grad()
                with context("reference" if reference else mode):
                    loss = case.compute_loss(model, batch)
                r["loss_by_step"].append(float(loss.detach()))
                (loss * torch.tensor(float(scale))).backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(scale)
            was = [(p, p.detach().clone()) for p in model.parameters() if p.grad is not None]
            with tr if trace else nullctx():
                opt.step()
            nz = sum(int((p.grad != 0).sum()) for p, _ in was)
            mv = sum(int(((p.detach() != q) & (p.grad != 0)).sum()) for p, q in was)
            r["moved_by_step"].append(round(mv / nz, 4) if nz else 1.0)
            if hasattr(case, "after_step"):
                case.after_step(model)
        r["events"] = tr.events
        moved = tot = 0
        for n, p in model.named_parameters():
            if not torch.isfinite(p).all():
                r["nonfinite_params"].append(n)
            g = r["grads"].get(n)
            if g is not None:
                nz = g != 0
                tot += int(nz.sum())
                moved += int(((p.detach() != before[n]) & nz).sum())
        r["moved_frac"] = moved / tot if tot else 1.0
        if hasattr(case, "probe_update"):
            r["probe"] = case.probe_update(model)
    return r


def output_error(case, mode):
    """Error of model(**batch), the answer of a run without a loss, against FP32."""
    out = []
    for reference in (True, False):
        seed()
        model, batch = build(case, mode, reference)
        seed()
        with torch.no_grad(), context("reference" if reference else mode):
            out.append(model(**batch).double())
    return round(float((out[1] - out[0]).norm() / out[0].norm()), 4)


def scaler_run(case, mode, growth_interval, steps):
    """What torch's own GradScaler does: skipped steps and the highest and last scale (log2)."""
    seed()
    model, batch = build(case, mode)
    opt = case.build_optimizer(model)
    sc = torch.amp.GradScaler("cpu", growth_interval=growth_interval)
    seen = [sc.get_scale()]
    for _ in range(steps):
        opt.zero_grad()
        with context(mode):
            loss = case.compute_loss(model, batch)
        sc.scale(loss).backward()
        sc.step(opt)
        sc.update()
        seen.append(sc.get_scale())
    return dict(skips=sum(b < a for a, b in zip(seen, seen[1:])), top_log2=math.log2(max(seen)), last_log2=math.log2(seen[-1]))


def scale_scan(case, mode, ref, exps):
    seed()
    model, batch = build(case, mode)
    seed()
    out = {}
    try:
        with context(mode):
            loss = case.compute_loss(model, batch)
        if not math.isfinite(float(loss.detach())):
            return out
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        for e in exps:
            s = 2.0**e
            gs = torch.autograd.grad(
                loss * torch.tensor(s), [p for _, p in named], retain_graph=True, allow_unused=True
            )
            fin, lost, tot = True, 0, 0
            num = den = 0.0
            for (n, _), g in zip(named, gs):
                if g is None:
                    continue
                fin &= bool(torch.isfinite(g).all())
                q = ref["grads"].get(n)
                if q is not None:
                    nz = q != 0
                    tot += int(nz.sum())
                    lost += int((nz & (g == 0)).sum())
                    num += float(((g.double() / s - q.double()) ** 2).sum())
                    den += float((q.double() ** 2).sum())
            err = math.sqrt(num / den) if den > 0 and math.isfinite(num) else float("inf")
            out[e] = (fin, lost / tot if tot else 0.0, err)
    except Exception:  # noqa: BLE001
        pass
    return out


def rel(a, b):
    num = sum(float(((a[n] - b[n]).double() ** 2).sum()) for n in b if n in a)
    den = sum(float((b[n].double() ** 2).sum()) for n in b)
    if not math.isfinite(num):
        return float("inf")
    return math.sqrt(num / den) if den > 0 else math.sqrt(num)


def by_module(low, ref):
    """Share of fp32-nonzero gradient elements that are zero in MODE, per parameter (worst 4)."""
    r = {}
    for n, q in ref["grads"].items():
        if n in low["grads"]:
            nz = q != 0
            if int(nz.sum()):
                u = float((nz & (low["grads"][n] == 0)).sum()) / float(nz.sum())
                if u > 0.05:
                    r[n] = round(u, 3)
    return dict(sorted(r.items(), key=lambda kv: -kv[1])[:4])


def fmt(e):
    if not e:
        return "-"
    s = f"{e['phase']}:{e['op']}[{e['kind']},{e['dtype']}] @{e['module'] or '<root>'}:L{e['line']}"
    return s + (f" (fwd {e['fwd_op']})" if e.get("fwd_op") else "")


def fails(r):
    return bool(r["exc"]) or r["loss"] is None or not math.isfinite(r["loss"]) or bool(r["bad_grads"])


def holds(cond, value):
    return value is not None and bool(eval(str(cond), {}, {"x": value}))  # noqa: S307 - our own conditions


class Pick:
    """The case with another batch."""

    def __init__(self, case, batch):
        self.build_model, self.compute_loss, self.build_batch = case.build_model, case.compute_loss, lambda: batch


def blamed(case, mode, scale, path, rows):
    """Does the batch pass when those samples are replaced by its first good one?"""
    batch = {k: v.clone() for k, v in case.build_batch().items()}
    good = next(i for i in range(len(next(iter(batch.values())))) if i not in rows)
    for v in batch.values():
        v[rows] = v[good].clone()
    return not fails(run_once(Pick(case, batch), mode, scale, path, trace=False))
