"""Keys of a config changed and configs made on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampdoctor.config import config_from_options
from ampdoctor.config.workload import DataFile, LossBuiltin, LossTarget
from ampdoctor.errors import ConfigError
from config_texts import SMALLEST, parse, problems


def test_set_changes_any_key() -> None:
    config = parse(
        SMALLEST + "precision: &p {loss_scale: 8}\nrules: {waivers: [{code: AMP101, reason: x}]}",
        "precision.loss_scale=1e3",
        "model.kwargs.depth=3",
        "rules.ignore=[AMP103, AMP205]",
        "rules.waivers.0.module=head",
        'limits."decoder.*".headroom_bits=2',
        "loss=none",
    )
    assert config.precision.loss_scale == 1000.0
    assert config.model.kwargs == {"depth": 3}
    assert config.rules.ignore == ["AMP103", "AMP205"]
    assert config.rules.waivers[0].module == "head"
    assert config.limits.modules["decoder.*"].headroom_bits == 2.0
    assert config.loss == "none"


def test_set_replaces_a_plain_value_by_a_section_and_empty_takes_a_key_away() -> None:
    text = "model: {target: a.py:b, checkpoint: w.pt}\ndata: {file: x.pt}\nloss: none\n"
    config = parse(text, "loss.builtin=mse", "model.checkpoint=")
    assert config.loss == LossBuiltin(builtin="mse")
    assert config.model.checkpoint is None


def test_set_leaves_the_other_users_of_a_yaml_alias_alone() -> None:
    config = parse(
        "model: {target: a.py:b, kwargs: &k {x: 1}}\ndata: {target: a.py:b, kwargs: *k}", "data.kwargs.x=2"
    )
    assert config.model.kwargs == {"x": 1}


def test_problems_with_set_name_the_option() -> None:
    assert problems(
        SMALLEST,
        "precision.dtyp=fp16",
        "seed",
        "limits.headroom_bits=[1",
        "precision.loss_scale=2",
        "precision.loss_scale=0",
        "data={file: 3}",
    ) == [
        "--set seed: write KEY.PATH=VALUE, such as precision.loss_scale=1024",
        "--set limits.headroom_bits=[1: the value is no YAML: while parsing a flow sequence, "
        "expected ',' or ']', but got '<stream end>'",
        "--set precision.loss_scale=0: must be greater than 0, got 0",
        "--set precision.dtyp=fp16: unknown key; did you mean 'dtype'?",
        "--set data={file: 3}: data.file: expected text, got 3",
    ]


def test_options_alone_make_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_from_options("m.py:build", "batch.npz", "mse", ["precision.mode=half"])
    assert config.data == DataFile(file="batch.npz")
    assert config.loss == LossBuiltin(builtin="mse")
    assert config.precision.mode == "half"
    assert (config.title, config.directory) == ("m.py:build", tmp_path)
    assert config_from_options("m.py:build", "m.py:data", "none").loss == "none"
    assert config_from_options("m.py:build", "m.py:data", "m.py:f").loss == LossTarget(target="m.py:f")


def test_problems_with_options_name_the_option() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_options("models.py", None, "mes")
    assert caught.value.message == "the command line has 3 problems"
    assert list(caught.value.problems) == [
        "--model models.py: 'models.py' is no target; write file.py:name or package.module:name",
        "--data: is required",
        "--loss mes: 'mes' is not allowed; did you mean 'mse'? (allowed: cross_entropy, nll, mse, l1, "
        "smooth_l1, huber, bce, bce_with_logits, kl_div)",
    ]
