"""The config: what it accepts, and what it says about what it does not."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from ampdoctor.config import Config, load_config
from ampdoctor.config.problems import KEY_PATHS
from ampdoctor.config.workload import DataFile, DataSynthetic, DataTarget, LossBuiltin, LossTarget
from ampdoctor.errors import ConfigError
from config_texts import SMALLEST, failure, parse, problems


def test_the_smallest_config_has_the_contract_s_defaults() -> None:
    config = parse(SMALLEST)
    assert config.model.target == "models.py:build_model"
    assert config.data == DataTarget(target="models.py:build_batch", batches=1)
    assert config.loss is None and config.optimizer is None
    assert config.precision.model_dump() == {
        "mode": "autocast",
        "dtype": "float16",
        "device": "auto",
        "emulate": "cuda",
        "loss_scale": "dynamic",
        "reference": "float32",
    }
    assert config.seed == 0
    assert (config.rules.select, config.rules.ignore, config.rules.waivers) == (["AMP"], [], [])
    assert config.limits.headroom_bits == 1.0
    assert config.limits.gradient_underflow == 0.01
    assert config.limits.scale_margin_bits == 1.0
    assert config.limits.modules == {}
    assert config.gate.fail_on == ["error"]


def test_the_whole_contract_is_accepted() -> None:
    config = parse("""
        version: 1
        model: {target: models.py:build_model, kwargs: {depth: 2}, checkpoint: weights.safetensors}
        data: {target: package.module:build_batch, batches: 4}
        loss: {target: models.py:compute_loss}
        optimizer: {target: models.py:build_optimizer}
        precision: {mode: half, dtype: bfloat16, device: "cuda:1", emulate: none, loss_scale: 1024}
        seed: 7
        rules:
          select: [AMP1, AMP203]
          ignore: [AMP103]
          waivers: [{code: AMP103, module: "decoder.*", reason: known, expires: 2027-01-31}]
        limits: {headroom_bits: 2, "decoder.*": {headroom_bits: 0.5}}
        gate: {fail_on: [error, AMP103], baseline: known.json, allow_headroom_loss: 1}
        """)
    assert config.model.kwargs == {"depth": 2}
    assert config.rules.waivers[0].expires == datetime.date(2027, 1, 31)
    assert config.limits.headroom_bits == 2.0
    assert config.limits.modules["decoder.*"].headroom_bits == 0.5
    assert config.limits.modules["decoder.*"].gradient_underflow is None
    assert config.precision.device == "cuda:1"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("{target: a.py:b}", DataTarget),
        ("{file: batch.pt}", DataFile),
        ("{synthetic: {x: {shape: [8, 3], low: -1, high: 1}}}", DataSynthetic),
    ],
)
def test_data_comes_from_one_of_three_places(data: str, kind: type) -> None:
    assert isinstance(parse(f"model: {{target: a.py:b}}\ndata: {data}").data, kind)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("{target: a.py:b}", LossTarget(target="a.py:b")),
        ("{builtin: mse}", LossBuiltin(builtin="mse")),
        ("none", "none"),
        ("", None),
    ],
)
def test_loss_is_a_target_a_builtin_none_or_left_out(loss: str, expected: object) -> None:
    assert parse(f"{SMALLEST}loss: {loss}").loss == expected


def test_numbers_may_be_written_with_an_exponent() -> None:
    config = parse("""
        model: {target: a.py:b, kwargs: {eps: 1e-5, name: "1e-5"}}
        data: {target: a.py:b}
        precision: {loss_scale: 1e5}
        """)
    assert config.model.kwargs == {"eps": 1e-5, "name": "1e-5"}
    assert config.precision.loss_scale == 100000.0


def test_every_problem_is_reported_at_once_in_the_order_of_the_file() -> None:
    error = failure("""\
        model: {taget: models.py:build_model}
        data: {target: models.py, batchs: 3, file: x.pt}
        loss: mse
        precision:
          dtyp: float16
          dtype: fp16
          mode: [1]
          loss_scale: 0
          device: gpu
        loss_scale: 3
        seed: 1.5
        rules: {select: AMP, waivers: [{code: AMP103, expires: 5}]}
        gate: {fail_on: [errors]}
        """)
    assert error.message == "config.yaml has 16 problems"
    assert error.exit_code == 2
    assert list(error.problems) == [
        "config.yaml:1: model.taget: unknown key; did you mean 'target'?",
        "config.yaml:2: data.target: 'models.py' is no target; write file.py:name or package.module:name",
        "config.yaml:2: data.batchs: unknown key; did you mean 'batches'?",
        "config.yaml:2: data.file: cannot stand next to 'target'; keep one of the two",
        "config.yaml:3: loss: expected {target: file.py:name}, {builtin: cross_entropy} or none, got 'mse'; "
        "did you mean {builtin: mse}?",
        "config.yaml:5: precision.dtyp: unknown key; did you mean 'dtype'?",
        "config.yaml:6: precision.dtype: 'fp16' is not allowed; did you mean 'float16'? "
        "(allowed: float16, bfloat16)",
        "config.yaml:7: precision.mode: a list is not allowed (allowed: autocast, half, none)",
        "config.yaml:8: precision.loss_scale: must be greater than 0, got 0",
        "config.yaml:9: precision.device: 'gpu' is not allowed; did you mean 'cuda'? "
        "(allowed: auto, cpu, cuda, cuda:1)",
        "config.yaml:10: loss_scale: unknown key; did you mean 'precision.loss_scale'?",
        "config.yaml:11: seed: expected a whole number, got 1.5",
        "config.yaml:12: rules.select: expected a list, got 'AMP'",
        "config.yaml:12: rules.waivers.0.reason: is required",
        "config.yaml:12: rules.waivers.0.expires: expected a date like 2027-01-31, got 5",
        "config.yaml:13: gate.fail_on.0: 'errors' is neither a severity (error, warning, info) "
        "nor a rule code (AMP101)",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("precision: {loss_scale: .inf}", "precision.loss_scale: must be a finite number, got inf"),
        ("precision: {loss_scale: .nan}", "precision.loss_scale: must be a finite number, got nan"),
        ("precision: {loss_scale: -2}", "precision.loss_scale: must be greater than 0, got -2"),
        (
            "precision: {loss_scale: 2^999}",
            f"precision.loss_scale: must be at most {2.0**127:g}, got 2^999",
        ),
        ("precision: {loss_scale: true}", "precision.loss_scale: expected a number, got true"),
        (
            "precision: {loss_scale: big}",
            "precision.loss_scale: 'big' is no loss scale; write dynamic, {dynamic: 1024}, or a number such "
            "as 1024 or 2^10",
        ),
        (
            "precision: {loss_scale: {dynmic: 8}}",
            "precision.loss_scale.dynmic: unknown key; did you mean 'dynamic'?",
        ),
        (
            "precision: {loss_scale: {dynamic: 0}}",
            "precision.loss_scale.dynamic: must be greater than 0, got 0",
        ),
        ("precision: half", "precision: expected a mapping, got 'half'"),
        ("precision: {emulate: gpu}", "precision.emulate: 'gpu' is not allowed (allowed: cuda, none)"),
        ("version: 2", "version: 2 is not allowed (allowed: 1)"),
        ("seed: -1", "seed: must be at least 0, got -1"),
        ("optimizer: {target: a:b, steps: 0}", "optimizer.steps: must be at least 1, got 0"),
        ("optimizer: {target: a:b, steps: -3}", "optimizer.steps: must be at least 1, got -3"),
        ("optimizer: {target: a:b, steps: 2.5}", "optimizer.steps: expected a whole number, got 2.5"),
        (
            "optimizer: a.py:build",
            "optimizer: expected a mapping, got 'a.py:build'; write optimizer: {target: a.py:build}",
        ),
        ("loss: {}", "loss: needs one of {target: file.py:name}, {builtin: cross_entropy} or none"),
        (
            "loss: {bultin: mse}",
            "loss: needs one of {target: file.py:name}, {builtin: cross_entropy} or none; "
            "'bultin' may be meant as 'builtin'",
        ),
        (
            "loss: a.py:f",
            "loss: expected a mapping, got 'a.py:f'; write loss: {target: a.py:f}",
        ),
        ("limits: {headroom_bit: 1}", "limits.headroom_bit: unknown key; did you mean 'headroom_bits'?"),
        (
            'limits: {"a.*": {headroom: 1}}',
            "limits.\"a.*\".headroom: unknown key; did you mean 'headroom_bits'?",
        ),
        ("limits: {gradient_underflow: 2}", "limits.gradient_underflow: must be at most 1, got 2"),
        (
            "rules: {ignore: [E501]}",
            "rules.ignore.0: 'E501' is no rule code; write AMP101, or AMP1 for all that start so",
        ),
        ("1: 2", "1: keys are text; put 1 in quotes"),
        (
            "rules: {waivers: [{code: AMP1, reason: x, expires: 2027-02-30}]}",
            "rules.waivers.0.expires: expected a date like 2027-01-31, got '2027-02-30'",
        ),
    ],
)
def test_one_problem_names_its_key_and_what_came(text: str, problem: str) -> None:
    assert problems(SMALLEST + text) == [f"config.yaml:3: {problem}"]


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        ("{shape: [2, -1]}", "x.shape.1: must be at least 0, got -1"),
        ("{shape: 3}", "x.shape: expected a list, got 3"),
        ("{}", "x.shape: is required"),
        ("{shape: [100000000000000000000, 4]}", "x: shape asks for more elements than any machine holds"),
        ("{shape: [1], dtype: int64}", "x: high is required for dtype int64 (one past the largest value)"),
        ("{shape: [1], low: 1, high: 1}", "x: low must be less than high, got low 1 and high 1"),
        ("{shape: [1], dtype: bool, low: 0}", "x: low and high make no sense for dtype bool"),
        (
            "{shape: [1], dtype: int64, high: 2.5}",
            "x: low and high must be whole numbers for dtype int64",
        ),
        ("{shape: [1], dtype: uint8, high: 257}", "x: low and high must lie in 0..256 for dtype uint8"),
    ],
)
def test_synthetic_tensors_are_checked(tensor: str, problem: str) -> None:
    text = f"model: {{target: a.py:b}}\ndata: {{synthetic: {{x: {tensor}}}}}\n"
    assert problems(text) == [f"config.yaml:2: data.synthetic.{problem}"]


def test_a_key_written_twice_is_reported_although_yaml_keeps_the_last() -> None:
    text = SMALLEST + "seed: 1\nprecision: {dtype: float16,\n  dtype: bfloat16}\nseed: 2\n"
    assert problems(text) == [
        "config.yaml:5: precision.dtype: this key is already on line 4",
        "config.yaml:6: seed: this key is already on line 3",
    ]


def test_a_merge_key_is_no_duplicate_and_an_alias_to_itself_ends() -> None:
    config = parse("""
        model: &m {target: a.py:b, kwargs: {x: 1}}
        data: {<<: *m, target: a.py:c}
        """)
    assert config.data == DataTarget(target="a.py:c", kwargs={"x": 1})
    assert problems(SMALLEST + "seed: &s [*s]") == [
        "config.yaml:3: seed: expected a whole number, got a list"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config.yaml is empty"),
        ("# nothing\n", "config.yaml is empty"),
        ("- a\n- b\n", "config.yaml: a config is a mapping (model: ..., data: ...), this is a list"),
        (
            "hello",
            "config.yaml: a config is a mapping (model: ..., data: ...), this is a single value, 'hello'",
        ),
        (
            "model: {target: x\ndata: 1",
            "config.yaml:2: not valid YAML: while parsing a flow mapping, expected ',' or '}', but got ':'",
        ),
        (
            "seed: !!python/object:os.system {}",
            "config.yaml:1: not valid YAML: "
            "could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'",
        ),
        ("a: \x07", "config.yaml: not valid YAML: it holds the unprintable character #x0007"),
    ],
)
def test_what_is_no_config_gets_one_message(text: str, message: str) -> None:
    assert failure(text).message == message


def test_a_tab_gets_a_hint() -> None:
    assert failure("model:\n\ttarget: x").hint == "Indent with spaces; YAML allows no tabs there."


def test_files_are_read_and_missing_ones_get_a_near_miss(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("\ufeff" + SMALLEST)
    config = load_config(file)
    assert (config.title, config.directory) == ("config.yaml", tmp_path)
    assert config.path("weights.pt") == tmp_path / "weights.pt"

    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "confg.yaml")
    assert caught.value.message == f"there is no config file {tmp_path / 'confg.yaml'}"
    assert caught.value.hint == f"Did you mean {file}?"

    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    assert caught.value.message == f"{tmp_path} is a folder, not a config file"
    assert caught.value.hint == f"It holds: {file}"

    file.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.message == f"{file} is no text file in UTF-8"

    with pytest.raises(ConfigError) as caught:
        load_config(Path("models.py:build_model"))
    assert caught.value.hint == (
        "To scan without a config: --model models.py:build_model --data file.py:name"
    )


# ---------------------------------------------------------------- keys


def test_the_schema_explains_every_key() -> None:
    schema = Config.model_json_schema()
    json.dumps(schema)
    silent = [
        f"{name}.{key}"
        for name, section in [("Config", schema), *schema["$defs"].items()]
        for key, value in section.get("properties", {}).items()
        if "description" not in value and "$ref" not in value
    ]
    assert not silent
    assert schema["$defs"]["LimitsSection"]["additionalProperties"] == {"$ref": "#/$defs/LayerLimits"}


def test_key_paths_reach_into_lists_and_free_names() -> None:
    assert ("rules", "waivers", "*", "expires") in KEY_PATHS
    assert ("data", "synthetic", "*", "shape") in KEY_PATHS
    assert ("limits", "*", "headroom_bits") in KEY_PATHS
