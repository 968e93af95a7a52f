"""The options of `brim train distill` and the files they are read from."""

from dataclasses import replace

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.core.errors import DataError, MismatchError, OptionError
from brim.envs.darkroom.histories import HistoryConfig
from brim.envs.darkroom.ppo import Ppo
from brim.envs.darkroom.q_learning import QLearning
from brim.envs.darkroom.room import Darkroom
from brim.train.distill.config import DistillConfig, EvaluationConfig, ModelConfig, TrainingConfig
from brim.train.distill.samples import CutConfig
from brim.train.distill.yaml_files import BUNDLE, config_from, load_config


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write files into the current directory, and load them in that order."""
    monkeypatch.chdir(tmp_path)

    def load(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return load_config([f"{name}.yaml" for name in files])

    return load


def test_without_files_the_options_are_the_defaults():
    assert load_config() == DistillConfig()


@pytest.mark.parametrize("path", sorted(BUNDLE.glob("config/*/*.yaml")), ids=lambda path: path.name)
def test_every_file_that_comes_with_brim_can_be_loaded_alone(path):
    assert isinstance(load_config([path.relative_to(BUNDLE)]), DistillConfig)


def test_the_command_of_the_literature_names_three_files_that_come_with_brim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(
        ["config/algorithm/ppo_base.yaml", "config/env/darkroom.yaml", "config/model/ad_compressed_dr.yaml"]
    )
    assert isinstance(config.histories.algorithm, Ppo)
    assert config == replace(DistillConfig(), histories=HistoryConfig(algorithm=Ppo(), keep_every=16))


def test_a_file_in_the_current_directory_comes_before_one_of_the_same_name_in_brim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config" / "env").mkdir(parents=True)
    (tmp_path / "config" / "env" / "darkroom.yaml").write_text("env: {size: 7}")
    assert load_config(["config/env/darkroom.yaml"]).histories.room.size == 7


def test_later_files_win_and_sections_merge(write):
    config = write(
        a="model: {width: 32, heads: 2}\ntraining: {steps: 7}",
        b="model: {width: 48}\nalgorithm: {repeats: 3, epsilon: 0.5}",
        c="algorithm: {epsilon: 0}\n",
        d="",
    )
    assert config.model == ModelConfig(width=48, heads=2)
    assert config.training == TrainingConfig(steps=7)
    assert config.histories == HistoryConfig(repeats=3, algorithm=QLearning(epsilon=0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: {}", r"""b.yaml: unknown section 'modle'. Did you mean "model"\?"""),
        ("model: {widht: 3}", r"""b.yaml: unknown option 'widht' in model. Did you mean "width"\?"""),
        (
            "algorithm: {keep_evry: 3}",
            r"""b.yaml: unknown option 'keep_evry' in algorithm. Did you mean "keep_every"\?""",
        ),
        ("env: {heldout: 0.3}", r"""b.yaml: unknown option 'heldout' in env. Did you mean "held_out"\?"""),
        ("algorithm: {name: ppo, replays: 3}", "b.yaml: unknown option 'replays' in algorithm"),
        (
            "algorithm: {name: pppo}",
            r"""b.yaml: algorithm.name must be one of q_learning, ppo, got 'pppo'. Did you mean "ppo"\?""",
        ),
        ("env: {name: lightroom}", "b.yaml: env.name must be one of darkroom, got 'lightroom'"),
        ("model: 3", "b.yaml: model must be a section, got 3"),
        ("model: {width: 3.5}", "b.yaml: model.width must be a whole number, got 3.5"),
        ("model: {width: true}", "b.yaml: model.width must be a whole number, got True"),
        ("model: {width: [1]}", r"b.yaml: model.width must be a whole number, got \[1\]"),
        (
            "training: {learning_rate: 3e-3}",
            "b.yaml: training.learning_rate must be a number, got '3e-3'; write 0.003, with a point",
        ),
        ("training: {learning_rate: fast}", "b.yaml: training.learning_rate must be a number, got 'fast'$"),
        ("training: {seeds: 3}", "b.yaml: training.seeds must be a list of whole numbers, got 3"),
        ("training: {schedule: 1}", "b.yaml: training.schedule must be a word, got 1"),
        (
            "training: {schedule: cosin}",
            r"""b.yaml: training: schedule must be one of .*, got 'cosin'. Did you mean "cosine"\?""",
        ),
        ("algorithm: {repeats: lots}", "b.yaml: algorithm.repeats must be a whole number, got 'lots'"),
        ("env: {held_out: most}", "b.yaml: env.held_out must be a number, got 'most'"),
        ("model: {width: 30}", "^a.yaml, b.yaml: model: width must be a multiple of heads, got 30 and 4"),
        ("env: {held_out: 0}", "^b.yaml: env: held_out must be between 0 and 1, got 0.0"),
        ("algorithm: {episodes: 0}", "^b.yaml: algorithm: episodes must be at least 1, got 0"),
        ("model: {width: null}", "^b.yaml: model.width has no value; give it one, or leave the key out"),
        ("model: {heads:}", "^b.yaml: model.heads has no value"),
        (
            "training: {token_budget: 159}",
            "^b.yaml: training.token_budget must be at least 160, .*longest sample.*, got 159; raise it",
        ),
        ("data: {window: 99}", "^b.yaml: a history has 160 steps .*lower data.window"),
        ("data: {window: 1}", "b.yaml: data: window must be at least 2, got 1"),
        ("[1, 2]", r"b.yaml must hold sections such as model and training, got \[1, 2\]"),
    ],
)
def test_what_a_file_says_wrong_is_an_error_with_the_file_and_the_value(write, text, message):
    with pytest.raises(OptionError, match=message):
        write(a="model: {heads: 4}", b=text)


def test_values_that_do_not_go_together_are_blamed_on_all_of_their_files_and_no_other(write):
    with pytest.raises(OptionError, match=r"^y\.yaml: model: width must be a multiple of heads, got 64 and 3"):
        write(x="model: {latents: 2}\ntraining: {steps: 3}", y="model: {heads: 3}")
    with pytest.raises(OptionError, match=r"^y\.yaml, z\.yaml: model: width must be a multiple of heads, got 10 and 3"):
        write(x="model: {heads: 5}", y="model: {width: 10}", z="model: {heads: 3}")
    with pytest.raises(
        OptionError, match=r"^x\.yaml, y\.yaml: training\.token_budget must be at least 150, .* got 100"
    ):
        write(x="data: {window: 50, depth: 2}", y="training: {token_budget: 100}", z="model: {heads: 2}")
    with pytest.raises(
        OptionError, match=r"^x\.yaml, y\.yaml: unknown option 'epsilon' in algorithm ppo: it is one of q_learning"
    ):
        write(x="algorithm: {epsilon: 0.5}", y="algorithm: {name: ppo}")


def test_a_section_may_be_empty_in_any_file(write):
    assert write(a="model:", b="model: {width: 32}", c="model:\n  # width: 48\n").model == ModelConfig(width=32)


def test_a_section_that_is_none_is_an_error_also_where_a_later_file_has_one(write):
    with pytest.raises(OptionError, match=r"^a\.yaml: model must be a section, got 3"):
        write(a="model: 3", b="model: {width: 32}")


def test_mappings_can_be_merged_within_a_file(write):
    config = write(
        a="data: &a {window: 10}\nenv: {<<: &b {size: 5, horizon: 8}, size: 4}",
        b="model: {<<: &c {width: 8}, heads: 2}\ntraining: {<<: {steps: 4}}",
    )
    assert (config.histories.room.size, config.histories.room.horizon) == (4, 8)
    assert (config.model.width, config.model.heads, config.data.window, config.training.steps) == (8, 2, 10, 4)
    assert write(b="evaluation: &a {episodes: 7}\nalgorithm: {<<: *a, repeats: 3}").histories.episodes == 7
    with pytest.raises(DataError, match=r"c\.yaml:1 is not YAML: the key 'size' comes twice"):
        write(c="env: {<<: &a {horizon: 8}, size: 4, size: 5}")
    with pytest.raises(DataError, match=r"d\.yaml:1 is not YAML: the key 'size' comes twice"):
        write(d="env: {<<: {size: 4, size: 5}}")
    assert write(e="{<<: {env: {size: 6}}, env: &a {<<: {size: 7}, size: 8}, model: {}}").histories.room.size == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        b"model: &a {width: *a}",
        b"\xff\xfe\x00",
        b"model: {width: 2024-13-45}",
        b"a\x00b",
        b"[" * 5000,
        b"model: {[1]: 2}",
        b"a: 1\n---\nb: 2",
    ],
)
def test_what_no_yaml_can_be_made_of_is_one_line(tmp_path, text):
    (tmp_path / "a.yaml").write_bytes(text)
    with pytest.raises(DataError, match=r"a\.yaml(:\d+)? is not YAML: ") as caught:
        load_config([tmp_path / "a.yaml"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["distill.py", "config.py", "config", "config/../config/env/darkroom.yaml", "config/env/../../distill.py"]
)
def test_nothing_but_the_files_of_config_comes_with_brim(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="does not exist, and does not come with brim"):
        load_config([name])


@given(st.integers(2, 40), st.integers(0, 3), st.integers(1, 8))
def test_the_budget_that_is_asked_for_holds_every_sample_and_no_less_does(window, depth, episodes):
    histories = HistoryConfig(room=Darkroom(horizon=20), episodes=episodes)
    assume(histories.steps > depth * window)
    data, longest = CutConfig(window=window, depth=depth), min((depth + 1) * window, histories.steps)
    DistillConfig(histories=histories, data=data, training=TrainingConfig(token_budget=longest))
    if longest > 1:
        with pytest.raises(
            OptionError, match=f"training.token_budget must be at least {longest}, .*, got {longest - 1};"
        ):
            DistillConfig(histories=histories, data=data, training=TrainingConfig(token_budget=longest - 1))


def test_what_is_not_yaml_and_what_is_not_there_are_errors(write):
    with pytest.raises(DataError, match=r"b\.yaml:2 is not YAML"):
        write(b="model:\n  width: 3: 4\n")
    with pytest.raises(DataError, match=r"b\.yaml:3 is not YAML: the key 'width' comes twice"):
        write(b="model:\n  width: 3\n  width: 4\n")
    with pytest.raises(
        DataError, match=r'config/env/darkrom.yaml does not exist, .*Did you mean "config/env/darkroom.yaml"\?'
    ):
        load_config(["config/env/darkrom.yaml"])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (TrainingConfig, {"seeds": ()}, r"at least one, got \[\]"),
        (TrainingConfig, {"seeds": (1, 1)}, r"different numbers from 0 on, and at least one, got \[1, 1\]"),
        (TrainingConfig, {"steps": 0}, "steps must be at least 1, got 0"),
        (TrainingConfig, {"learning_rate": float("inf")}, "learning_rate must be above 0 and finite, got inf"),
        (TrainingConfig, {"warmup": 1.5}, "warmup must be between 0 and 1, got 1.5"),
        (TrainingConfig, {"clip_norm": -1.0}, "clip_norm must not be negative or infinite, got -1.0"),
        (EvaluationConfig, {"episodes": 2}, "first and last ones, got 2"),
        (EvaluationConfig, {"temperature": -0.5}, "temperature must not be negative or infinite, got -0.5"),
        (CutConfig, {"depth": -1}, "depth must not be negative, got -1"),
        (ModelConfig, {"latents": 0}, "latents must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_work_are_refused_with_their_value(kind, options, message):
    with pytest.raises(OptionError, match=message):
        kind(**options)


options = st.builds(
    DistillConfig,
    histories=st.builds(
        HistoryConfig,
        algorithm=st.one_of(st.builds(QLearning, replays=st.integers(0, 9)), st.builds(Ppo, passes=st.integers(1, 9))),
        held_out=st.floats(0.1, 0.9),
        seed=st.integers(0, 99),
    ),
    data=st.builds(CutConfig, window=st.integers(2, 50)),
    training=st.builds(
        TrainingConfig, seeds=st.lists(st.integers(0, 9), min_size=1, unique=True).map(tuple), steps=st.integers(1, 99)
    ),
)


@given(options)
def test_options_survive_being_written_and_read(config):
    assert config_from(config.to_dict()) == config
    assert config_from(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config


def test_a_resumed_run_may_change_what_does_not_reach_the_weights_and_nothing_else():
    before = DistillConfig()
    replace(
        before.with_training(seeds=(5,), save_every=7, log_every=1), evaluation=EvaluationConfig(episodes=9)
    ).check_resumed(before)
    with pytest.raises(MismatchError, match=r"algorithm.seed \(0 -> 1\), training.steps \(1000 -> 5\)"):
        replace(before.with_training(steps=5), histories=HistoryConfig(seed=1)).check_resumed(before)
    with pytest.raises(MismatchError, match=r"algorithm.name \(q_learning -> ppo\)"):
        replace(before, histories=HistoryConfig(algorithm=Ppo())).check_resumed(before)
