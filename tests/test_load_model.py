"""Models: built, unwrapped, seeded; and what is said of everything that is no model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch

from ampdoctor.errors import LoadError
from ampdoctor.load import Workload
from ampdoctor.load.wrappers import unwrap
from load_helpers import load_failure, load_in, write

CODE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, depth=1):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(2, 2) for _ in range(depth)])

        def forward(self, x):
            return self.layers(x)

    net = Net()

    def build_model(depth=1):
        return Net(depth)

    def nothing(): pass
    def gives_class(): return Net
    def gives_pair(): return Net(), "tokenizer"
    def gives_dict(): return {"model": Net()}
    def raises(): raise ValueError("no weights here\\nsecond line")
    def on_meta():
        with torch.device("meta"):
            return nn.Linear(2, 2)
    def optimizer(model, lr=0.5): return torch.optim.SGD(model.parameters(), lr=lr)
    def no_optimizer(model): return None
    number = 3
    """


def load_model(folder: Path, model: str, more: str = "") -> Workload:
    write(folder, "models.py", CODE)
    return load_in(folder, config(model, more))


def config(model: str, more: str = "") -> str:
    return f"model: {model}\ndata: {{synthetic: {{x: {{shape: [1, 2]}}}}}}\nloss: none\n{more}"


def model_failure(folder: Path, model: str, more: str = "") -> tuple[str, str]:
    write(folder, "models.py", CODE)
    error = load_failure(folder, config(model, more))
    return error.message, error.hint


@pytest.mark.parametrize(
    ("model", "depth"),
    [
        ("{target: models.py:build_model, kwargs: {depth: 3}}", 3),
        ("{target: models.py:Net, kwargs: {depth: 2}}", 2),
        ("{target: models.py:net}", 1),
    ],
)
def test_a_function_a_class_or_an_instance(tmp_path: Path, model: str, depth: int) -> None:
    workload = load_model(tmp_path, model)
    assert type(workload.model).__name__ == "Net"
    assert len(workload.model.get_submodule("layers")._modules) == depth
    assert workload.title == "config.yaml"
    assert workload.compiled == ()


@pytest.mark.parametrize(
    ("model", "message", "hint"),
    [
        (
            "{target: models.py:number}",
            "model.target: models.py:number is the number 3, no model and no function that builds one",
            "",
        ),
        (
            "{target: models.py:nothing}",
            "model.target: models.py:nothing returned None, not a model",
            "Is a `return` missing?",
        ),
        (
            "{target: models.py:gives_class}",
            "model.target: models.py:gives_class returned the class Net, not a model",
            "Return Net(...), an instance, or name the class itself as the target.",
        ),
        (
            "{target: models.py:gives_pair}",
            "model.target: models.py:gives_pair returned "
            "a tuple of 2 (the module Net, the text 'tokenizer'), not a model",
            "Return only the torch.nn.Module.",
        ),
        (
            "{target: models.py:gives_dict}",
            "model.target: models.py:gives_dict returned a dict with the keys model, not a model",
            "It must return a torch.nn.Module.",
        ),
        (
            "{target: models.py:net, kwargs: {depth: 2}}",
            "model.kwargs: models.py:net is a model already and takes no arguments",
            "Name the class or the function that builds it, or leave kwargs out.",
        ),
        (
            "{target: models.py:build_model, kwargs: {dept: 2}}",
            "model.kwargs.dept: models.py:build_model has no parameter 'dept'; did you mean 'depth'?",
            "It takes (depth=1).",
        ),
        (
            "{target: models.py:on_meta}",
            "model.target: models.py:on_meta built 2 tensors on the meta device, "
            "without values: weight, bias",
            "Build it on the CPU, not under torch.device('meta') or init_empty_weights().",
        ),
        (
            "{target: models.py:raises}",
            "model.target: models.py:raises raised ValueError: no weights here",
            "",
        ),
    ],
)
def test_what_is_no_model_says_what_it_is(tmp_path: Path, model: str, message: str, hint: str) -> None:
    assert model_failure(tmp_path, model) == (message, hint)


def test_the_model_is_built_from_the_seed_and_the_generators_are_put_back(tmp_path: Path) -> None:
    states = (random.getstate(), str(numpy.random.get_state()), torch.get_rng_state())
    weights = []
    for seed in (3, 3, 4):
        workload = load_model(tmp_path, "{target: models.py:build_model}", f"seed: {seed}")
        weights.append(workload.model.get_parameter("layers.0.weight").detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert random.getstate() == states[0]
    assert str(numpy.random.get_state()) == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_an_optimizer_function_and_an_optimizer_class(tmp_path: Path) -> None:
    for target in ("models.py:optimizer", "torch.optim:SGD"):
        more = f"optimizer: {{target: {target}, kwargs: {{lr: 0.25}}}}"
        workload = load_model(tmp_path, "{target: models.py:build_model}", more)
        assert workload.build_optimizer is not None
        optimizer = workload.build_optimizer(workload.model)
        assert isinstance(optimizer, torch.optim.SGD)
        assert optimizer.param_groups[0]["lr"] == 0.25
        assert optimizer.param_groups[0]["params"][0] is next(workload.model.parameters())


def test_an_optimizer_function_that_returns_something_else(tmp_path: Path) -> None:
    more = "optimizer: {target: models.py:no_optimizer}"
    workload = load_model(tmp_path, "{target: models.py:build_model}", more)
    assert workload.build_optimizer is not None
    with pytest.raises(Exception) as caught:
        workload.build_optimizer(workload.model)
    assert str(caught.value) == (
        "optimizer.target: models.py:no_optimizer returned None, not a torch.optim.Optimizer"
    )
    assert load_model(tmp_path, "{target: models.py:build_model}").build_optimizer is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("of_parameters", "It is called with the model: (model) -> torch.optim.Optimizer."),
        (
            "several",
            "Return one: optimizers are stepped one at a time, each by a function of its own, such as ",
        ),
    ],
)
def test_an_optimizer_function_of_another_kind_gets_a_hint(tmp_path: Path, name: str, hint: str) -> None:
    write(
        tmp_path,
        "optimizers.py",
        "import torch\n"
        "def of_parameters(params): return torch.optim.SGD(params)\n"
        "def several(model): return [torch.optim.SGD(model.parameters())] * 2\n",
    )
    more = f"optimizer: {{target: optimizers.py:{name}}}"
    workload = load_model(tmp_path, "{target: models.py:build_model}", more)
    assert workload.build_optimizer is not None
    with pytest.raises(LoadError) as caught:
        workload.build_optimizer(workload.model)
    assert caught.value.hint.startswith(hint)


def test_compiled_models_come_back_as_they_were() -> None:
    def compiled_by_wrapper(module: torch.nn.Module) -> torch.nn.Module:
        wrapper = torch.compile(module, backend="eager")
        assert isinstance(wrapper, torch.nn.Module)
        return wrapper

    inner = torch.nn.Linear(2, 2)
    block = torch.nn.Sequential(compiled_by_wrapper(inner), torch.nn.ReLU())
    block[1].compile(backend="eager")
    model, compiled = unwrap(compiled_by_wrapper(torch.nn.Sequential(block, block)))
    assert compiled == ("", "0.0", "0.1")
    assert isinstance(model, torch.nn.Sequential)
    assert model.get_submodule("1.0") is inner
    assert model.get_submodule("0.1")._compiled_call_impl is None
    assert [name for name, _ in model.named_parameters()] == ["0.0.weight", "0.0.bias"]


def test_a_script_module_is_left_as_it_is() -> None:
    script = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert unwrap(script) == (script, ())


def test_compiled_functions_inside_forward_run_eagerly(tmp_path: Path) -> None:
    write(
        tmp_path,
        "models.py",
        """
        import torch

        traced = []

        @torch.compile(backend="eager")
        def double(x):
            traced.append(torch.compiler.is_compiling())
            return x * 2

        class Net(torch.nn.Module):
            def forward(self, x):
                return double(x), list(traced)
        """,
    )
    workload = load_in(tmp_path, config("{target: models.py:Net}"))
    _, traced = workload.step(workload.model, workload.batches[0])
    assert traced == [False]
