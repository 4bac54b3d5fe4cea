"""A plan as lines for a training script that is to depend on nothing but torch."""

from __future__ import annotations

from ampdoctor.remedy.plan import TreatmentPlan, format_word

_ISLANDS = '''\
def run_in_fp32(module):
    """Autocast is off in the module, its inputs are widened{and_cast}."""
    inside = module.forward

    def widen(value):
        low = torch.is_tensor(value) and value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if low else value

    def forward(*args, **kwargs):
        args, kwargs = tree_map(widen, (args, kwargs))
        with torch.autocast({device}, enabled=False):
            {result}

    module.forward = forward


for path in {paths!r}:
    run_in_fp32(model.get_submodule(path))
'''
_SCALES = '''\
class ScaledGradient(torch.autograd.Function):
    """The tensor, or in FP32; its gradient times a factor."""

    @staticmethod
    def forward(ctx, x, factor, wide):
        ctx.factor, ctx.dtype = factor, x.dtype
        return x.float() if wide else x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * ctx.factor).to(ctx.dtype), None, None


def scale_apart(module, factor):
    """The module's backward runs at the loss scale times factor; outside it nothing changes."""
    inside = module.forward

    def scaled(value, factor, widens):
        if not torch.is_tensor(value):
            return value
        wide = widens and value.dtype in (torch.float16, torch.bfloat16)
        if not value.requires_grad:
            return value.float() if wide else value
        return ScaledGradient.apply(value, factor, wide)

    def forward(*args, **kwargs):
        args, kwargs = tree_map(lambda x: scaled(x, 1 / factor, False), (args, kwargs))
        widens = torch.is_autocast_enabled({device})
        return tree_map(lambda y: scaled(y, factor, widens), inside(*args, **kwargs))

    module.forward = forward
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient / factor)


for path, factor in {scales!r}.items():
    scale_apart(model.get_submodule(path), factor)
'''
_CAST = """outputs = inside(*args, **kwargs)
        return tree_map(
            lambda y: y.to({dtype}) if torch.is_tensor(y) and y.dtype == torch.float32 else y, outputs
        )"""


def code_of(plan: TreatmentPlan, dtype: str) -> str:
    """Python that makes ``model`` follow the plan, to be pasted after it is built; ``dtype`` is the user's.

    Where a framework opens autocast and holds the scaler, comments say what to tell it.
    """
    low = plan.dtype or dtype
    lines = ["import torch"]
    device = "next(model.parameters()).device.type"
    if plan.fp32 or plan.scales:
        lines += ["from torch.utils._pytree import tree_map", "", ""]
    else:
        lines.append("")
    if plan.fp32:
        cast = plan.output == "cast"
        lines.append(
            _ISLANDS.format(
                and_cast=" and its outputs cast back" if cast else "",
                device=device,
                result=_CAST.format(dtype=f"torch.{low}") if cast else "return inside(*args, **kwargs)",
                paths=list(plan.fp32),
            )
        )
    if plan.scales:
        lines.append(_SCALES.format(device=device, scales=dict(plan.scales)))
    if plan.dtype is not None:
        lines += [
            f"# plain loop: with torch.autocast(device, dtype=torch.{plan.dtype}): ...; no GradScaler",
            '# Hugging Face: TrainingArguments(bf16=True); Lightning: Trainer(precision="bf16-mixed")',
        ]
    elif plan.loss_scale is not None:
        start = f"{plan.loss_scale:.0f}" if plan.loss_scale >= 1 else f"{plan.loss_scale!r}"
        lines += [
            f"scaler = torch.amp.GradScaler(next(model.parameters()).device.type, init_scale={start})",
            "# Hugging Face: trainer.accelerator.scaler = scaler, before trainer.train()",
            '# Lightning: Trainer(plugins=[MixedPrecision("16-mixed", device, scaler=scaler)])',
        ]
    for change in plan.lines:
        what = (
            "run it in FP32" if change.constant is None else f"{change.becomes} instead of {change.constant}"
        )
        lines.append(f"# edit {change.file}:{change.line}: {what}")
    for item in plan.formats:
        words = f"forward {format_word(item.forward)}, gradient {format_word(item.gradient)}"
        lines.append(f"# {item.path}: {words}; FP8 needs kernels of its own (Transformer Engine, torchao)")
    if plan.loss_fp32:
        lines += ["# open autocast around the model only, and compute the loss outside it on outputs.float()"]
    return "\n".join(lines) + "\n"
