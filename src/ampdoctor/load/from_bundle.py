"""A bundle as a Workload: its roots made again, its weights put into them, its calls as the step."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampdoctor.errors import LoadError
from ampdoctor.facts.bundle import BATCH, OPTIMIZER, RANDOM, WEIGHTS, Bundle, Call, OptimizerFacts, Root
from ampdoctor.facts.site import Source
from ampdoctor.load.describe import listed
from ampdoctor.load.rebuilt import made_of
from ampdoctor.load.script.replay import Place, Replay, Roots
from ampdoctor.load.script.tape import Leaf, Node, Ref
from ampdoctor.load.script.tape_calls import decoded, function_of
from ampdoctor.load.seeds import Drawn, generator_of
from ampdoctor.load.workload import Workload
from ampdoctor.probe.watch.location import Line

Tensors = Mapping[str, Mapping[str, Tensor]]
_NAMED_TWICE = 6
"""Names that a message lists."""


def workload_from(
    bundle: Bundle, tensors: Tensors, title: str, user_model: nn.Module | None, device: torch.device
) -> Workload:
    """The recorded step as a workload. ``user_model``: what --model builds; None without one.

    ``device``: where it is to run; what the calls name of the recorded one is read as that. Raises LoadError
    where the bundle does not make a step here.
    """
    try:
        model = _model(bundle, tensors[WEIGHTS], user_model)
        batch = tuple(tensors[BATCH][str(i)] for i in range(len(tensors[BATCH])))
        for index in bundle.differentiated:
            batch[index].requires_grad_()
        step = _step(bundle, tensors, model, batch, device)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"it does not hold together: {type(error).__name__}: {error}") from error
    optimizer = bundle.optimizer
    build = None if optimizer is None else optimizer_builder(optimizer, tensors[OPTIMIZER])
    return Workload(title, model, (batch,), step, build_optimizer=build)


# ---------------------------------------------------------------- the model


def needs_model(bundle: Bundle) -> list[Root]:
    """The roots that only the user's code can make."""
    return [root for root in bundle.roots if root.build is None]


def _model(bundle: Bundle, weights: Mapping[str, Tensor], user_model: nn.Module | None) -> nn.Module:
    if len(bundle.roots) == 1 and bundle.roots[0].path == "":
        model = _root(bundle.roots[0], user_model, alone=True)
    else:
        model = Roots()
        alone = len(needs_model(bundle)) == 1
        for root in bundle.roots:
            model.add_module(root.path, _root(root, user_model, alone))
        for name, value in weights.items():
            if name.startswith("parameter_") and "." not in name:
                model.register_parameter(name, nn.Parameter(torch.zeros_like(value)))
    _fill(
        model,
        bundle,
        {n: v for n, v in weights.items() if not n.startswith("tensor-")},
        user_model is not None,
    )
    return model


def _root(root: Root, user_model: nn.Module | None, alone: bool) -> nn.Module:
    name = root.path or "model"
    if user_model is None:
        if root.build is None:
            raise LoadError(
                f"the {name} in it is a {root.type}, which the bundle cannot build by itself",
                "add --model file.py:build_model, a function that returns it (its weights are in the bundle)",
            )
        return made_of(root.build)
    child = user_model._modules.get(root.path) if root.path else None
    if child is not None:
        return child
    if root.build is not None and root.path:
        return made_of(root.build)
    if alone:
        return user_model
    raise LoadError(
        f"--model: the script called several modules, and what it built has no child '{root.path}'",
        "return torch.nn.ModuleDict({name: module, ...}) with the script's names for them",
    )


def _fill(model: nn.Module, bundle: Bundle, weights: Mapping[str, Tensor], is_users: bool) -> None:
    state: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    state.update(model.named_buffers(remove_duplicate=False))
    wanted = {**{name: weights[name] for name in weights}, **{n: weights[s] for n, s in bundle.ties.items()}}
    lacks, more = wanted.keys() - state.keys(), state.keys() - wanted.keys()
    subject = "what --model builds is not the recorded model" if is_users else "its model is another one here"
    if lacks or more:
        words = [f"it lacks {listed(sorted(lacks), _NAMED_TWICE)}"] if lacks else []
        words += [f"the recording has no {listed(sorted(more), _NAMED_TWICE)}"] if more else []
        raise LoadError(f"{subject}: {'; '.join(words)}")
    for name, value in wanted.items():
        if state[name].shape != value.shape:
            raise LoadError(f"{subject}: {name} is {list(state[name].shape)}, was {list(value.shape)}")
    frozen = set(bundle.frozen)
    for name, value in weights.items():
        state[name].data = value
        if isinstance(state[name], nn.Parameter):
            state[name].requires_grad_(name not in frozen)
    for name, source in bundle.ties.items():
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        place: Any = owner._parameters if leaf in owner._parameters else owner._buffers
        place[leaf] = state[source]
    evaluating = set(bundle.evaluating)
    for path, module in model.named_modules():
        module.training = path not in evaluating


# ---------------------------------------------------------------- the step


def _step(
    bundle: Bundle, tensors: Tensors, model: nn.Module, batch: tuple[Tensor, ...], device: torch.device
) -> Replay:
    nodes: list[Node] = []
    parameters = dict(model.named_parameters(remove_duplicate=False))
    beside = {
        name: value.requires_grad_() for name, value in tensors[WEIGHTS].items() if name.startswith("tensor-")
    }

    def unseal(tag: str, inside: Any) -> Any:
        if tag == "made":
            return Ref(nodes[inside[0]], inside[1])
        return Leaf(kept[tag][inside], 0, False)

    kept: dict[str, Any] = {"batch": batch, "parameter": parameters, "tensor": beside}
    moved = _moved_to(bundle.device, device)
    for number, call in enumerate(bundle.calls):
        args = (
            tuple(decoded(call.args, unseal)) if isinstance(call.args, list) else decoded(call.args, unseal)
        )
        function: Any = (
            model.get_submodule(call.root) if call.root is not None else function_of(call.function)
        )
        if call.root is None:
            function, args = _placed(function, moved(args), device)
        nodes.append(
            Node(
                function,
                args,
                moved(decoded(call.kwargs, unseal)) if call.root is None else decoded(call.kwargs, unseal),
                line=_line(call.line),
                autocast={
                    _kind(d, bundle, device): getattr(torch, dtype) for d, dtype in call.autocast.items()
                },
                grad=call.grad,
                in_place=call.in_place,
                generation=0,
                random=_drawn(number, call, tensors[RANDOM]),
            )
        )
    places = {id(tensor): Place(index) for index, tensor in enumerate(batch)}
    dtypes = tuple(getattr(torch, name) for name in bundle.dtypes)
    return Replay(nodes, Ref(nodes[bundle.end[0]], bundle.end[1]), places, dtypes)


def _kind(device: str, bundle: Bundle, here: torch.device) -> str:
    """Autocast of the recorded device is that of the one it runs on."""
    return here.type if torch.device(bundle.device).type == device else device


def _moved_to(recorded: str, device: torch.device) -> Callable[[Any], Any]:
    """Arguments with the device that is here in the place of the recorded one."""
    there = torch.device(recorded)

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == there.type:
            return device
        if isinstance(value, str) and value.partition(":")[0] == there.type != device.type:
            return str(device)
        if type(value) in (list, tuple):
            return type(value)(moved(item) for item in value)
        return {key: moved(item) for key, item in value.items()} if type(value) is dict else value

    return moved


def _placed(function: Any, args: Any, device: torch.device) -> tuple[Any, Any]:
    """``tensor.cuda()`` where there is no CUDA is ``tensor.cpu()``."""
    if function is torch.Tensor.cuda and device.type != "cuda":
        return torch.Tensor.cpu, args[:1]
    return function, args


def _drawn(number: int, call: Call, states: Mapping[str, Tensor]) -> Drawn:
    """The generators that are here too, with their states."""
    found = []
    for name in call.random:
        device = torch.device(name)
        if device.type == "cuda" and not torch.cuda.is_available():
            continue
        generator = generator_of(device)
        if generator is not None:
            found.append((generator, states[f"{number}.{name}"]))
    return found


# ---------------------------------------------------------------- its lines


def _line(source: Source | None) -> Line | None:
    if source is None:
        return None
    code = compile("", source.file, "exec").replace(co_name=source.function or "<module>")
    return code, source.line


@contextmanager
def recorded_lines(bundle: Bundle) -> Iterator[None]:
    """Inside, recorded lines are shown as they were, whatever is in their files here by now."""
    before = dict(linecache.cache)
    for file, texts in _texts(bundle).items():
        lines = list(linecache.getlines(file))
        lines += ["\n"] * (max(texts) - len(lines))
        for number, text in texts.items():
            if lines[number - 1].strip() != text:
                lines[number - 1] = text + "\n"
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)  # None: not looked up again
    try:
        yield
    finally:
        for file in _texts(bundle):
            linecache.cache.pop(file, None)
            if file in before:
                linecache.cache[file] = before[file]


def changed_files(bundle: Bundle) -> list[str]:
    """Files that are here and have another text at a recorded line."""
    changed = []
    for file, texts in _texts(bundle).items():
        try:
            lines = Path(file).read_text(errors="replace").splitlines()
        except (OSError, ValueError):  # not here, or no name of a file: its lines are shown as recorded
            continue
        if any(number > len(lines) or lines[number - 1].strip() != text for number, text in texts.items()):
            changed.append(file)
    return changed


def _texts(bundle: Bundle) -> dict[str, dict[int, str]]:
    """{file: {line: its text}} of all that was recorded."""
    found: dict[str, dict[int, str]] = {}
    for call in bundle.calls:
        if call.line is not None and call.line.text and 0 < call.line.line < 10**6:
            found.setdefault(call.line.file, {})[call.line.line] = call.line.text
    return found


# ---------------------------------------------------------------- its optimizer


def optimizer_builder(
    facts: OptimizerFacts, tensors: Mapping[str, Tensor]
) -> Callable[[nn.Module], torch.optim.Optimizer] | None:
    """A function that gives the model its optimizer as it stood; None for one that is not torch's."""
    kind = getattr(torch.optim, facts.type.rpartition(".")[2], None)
    is_torchs = facts.type.startswith("torch.optim.") and isinstance(kind, type)
    if not is_torchs or not issubclass(kind, torch.optim.Optimizer):  # type: ignore[arg-type]
        return None
    cls: Any = kind
    all_groups: Any = facts.groups

    def tensor(_: str, key: Any) -> Any:
        return tensors[key].clone()

    def build(model: nn.Module) -> torch.optim.Optimizer:
        own = dict(model.named_parameters(remove_duplicate=False))
        groups = [
            {
                "params": [own[name] for name in group["params"] if name in own],
                **{key: decoded(value, tensor) for key, value in group["values"].items()},
            }
            for group in all_groups
        ]
        made: torch.optim.Optimizer = cls(groups)
        for name, values in facts.state.items():
            if name not in own:
                continue
            for key, value in values.items():
                found = decoded(value, tensor)
                if isinstance(found, Tensor) and found.shape == own[name].shape:
                    found = found.to(own[name].device, own[name].dtype if found.is_floating_point() else None)
                made.state[own[name]][key] = found
        return made

    return build
