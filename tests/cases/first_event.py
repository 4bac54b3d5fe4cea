"""Plain torch's view of a pass: which aten op makes an inf of finite inputs, or a NaN of NaN-free ones.

A softmax over a row of legitimate -inf is such a creator, so "all inputs finite" would be too strict.
"""
import math
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def tensors(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, dict):
        for v in x.values():
            yield from tensors(v)
    elif isinstance(x, (list, tuple)):
        for v in x:
            yield from tensors(v)


def scalars(x):
    if isinstance(x, float):
        yield x
    elif isinstance(x, dict):
        for v in x.values():
            yield from scalars(v)
    elif isinstance(x, (list, tuple)):
        for v in x:
            yield from scalars(v)


def wide(t):
    """float8 has no isnan/isfinite kernel"""
    return t.float() if t.dtype.itemsize == 1 and t.is_floating_point() else t


def has_nan(t):
    return is_fp(t) and t.numel() > 0 and bool(torch.isnan(wide(t)).any())


def is_fp(t):
    return t.is_floating_point() or t.is_complex()


def bad(t):
    return is_fp(t) and t.numel() > 0 and not bool(torch.isfinite(wide(t)).all())


# operands that an op writes although its schema does not say so: running statistics
WRITES = {"aten::native_batch_norm": (3, 4)}
SKIP = ("aten::empty", "aten::new_empty", "aten::resize", "aten::set_", "aten::_unsafe_view")


class Tracer(TorchDispatchMode):
    """Records ops that create an inf out of finite inputs, or a NaN out of NaN-free inputs."""

    def __init__(self, case_file):
        super().__init__()
        self.case_file = str(case_file)
        self.stack = []
        self.phase = "forward"
        self.events = []
        self.where = {}
        self.handles = []
        self.n_ops = 0

    def watch(self, model):
        for name, mod in model.named_modules():
            self.handles.append(
                mod.register_forward_pre_hook(lambda m, a, n=name: self.stack.append(n))
            )
            self.handles.append(mod.register_forward_hook(self._leave, always_call=True))

    def _leave(self, mod, args, out):
        self.stack.pop()

    def unwatch(self):
        for h in self.handles:
            h.remove()

    def line(self):
        f = sys._getframe(2)
        while f is not None:
            if f.f_code.co_filename == self.case_file:
                return f.f_lineno
            f = f.f_back
        return None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.n_ops += 1
        name = func._schema.name
        clean_in = not any(bad(t) for t in tensors((args, kwargs)))
        nan_in = not clean_in and any(has_nan(t) for t in tensors((args, kwargs)))
        nan_in = nan_in or any(v != v for v in scalars((args, kwargs)))
        clean_sc = all(math.isfinite(v) for v in scalars((args, kwargs)))
        node = torch._C._current_autograd_node()
        fwd = None
        if self.phase == "forward" or node is None or self.stack:
            mod = self.stack[-1] if self.stack else ""
            ln = self.line()
        else:  # backward: look up the forward op that created this node
            mod, ln, fwd = self.where.get(node._sequence_nr(), ("", None, None))
        if node is None and self.phase == "forward":
            self.where.setdefault(torch.autograd._get_sequence_nr() - 1, (mod, ln, name))
        try:
            out = func(*args, **kwargs)
        except Exception as e:
            self.events.append(
                dict(phase=self.phase, op=name, module=mod, line=ln, kind="exception",
                     fwd_op=fwd, dtype="", msg=str(e).splitlines()[0][:160])
            )
            raise
        if not nan_in and not name.startswith(SKIP):
            if name == "aten::_ctc_loss":
                out_seen = out[:1]  # the second output is the alpha table, full of -inf by design
            else:
                out_seen = out
            if name in WRITES:
                out_seen = (out, [args[i] for i in WRITES[name] if isinstance(args[i], torch.Tensor)])
            for t in tensors(out_seen):
                if bad(t):
                    kind = "nan" if has_nan(t) else "inf"
                    if kind == "inf" and not (clean_sc and clean_in):
                        continue  # inherited, or the user wrote that infinity
                    self.events.append(
                        dict(phase=self.phase, op=name, module=mod, line=ln, kind=kind,
                             fwd_op=fwd, dtype=str(t.dtype).replace("torch.", ""),
                             frac=float((~torch.isfinite(wide(t))).float().mean()))
                    )
                    break
        return out
