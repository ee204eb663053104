"""Composition: who wins, where values come from, and what is said when it cannot be done."""

import logging
import threading
from types import SimpleNamespace

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

from guerdon.config import ConfigError, compose, to_yaml
from guerdon.config.trust import code_of
from guerdon.reward import REWARDS

pytestmark = pytest.mark.usefixtures("zoo")


def refused(source=None, *overrides) -> str:
    with pytest.raises(ConfigError) as error:
        compose(source, overrides)
    return str(error.value)


# --- precedence


def test_each_layer_goes_before_the_one_below_it(tmp_path):
    def gamma_and_steps(source, *overrides):
        config = compose(source, overrides)
        return config.policy["gamma"], config.collect.n_step, config.learn.batch_size

    # the schema, and the policy's defaults
    assert gamma_and_steps(None, "env.id=CartPole-v1") == (0.99, 256, 64)
    # the preset
    assert gamma_and_steps("cartpole_ppo") == (0.98, 256, 256)
    # a file
    file = tmp_path / "mine.yaml"
    file.write_text("env: cartpole\npolicy: {type: ppo, gamma: 0.9}")
    assert gamma_and_steps(str(file)) == (0.9, 256, 256)
    # overrides
    assert gamma_and_steps(file, "policy.gamma=0.8", "collect.n_step=512") == (0.8, 512, 256)


def test_groups_find_the_preset_they_make():
    assert compose("cartpole_ppo") == compose(None, ["env=cartpole", "policy=ppo"])
    assert compose(None, ["env=cartpole"]) == compose("cartpole_ppo")
    assert compose("cartpole_dqn") == compose("cartpole_ppo", ["policy=dqn"])
    assert compose("cartpole_dqn").run.max_steps == 50_000


def test_a_preset_of_a_reward_is_put_on_that_of_its_policy():
    config = compose("cartpole_dqn", ["reward=constant"])
    assert config == compose("cartpole_dqn_constant")
    assert (config.policy["gamma"], config.run.max_steps) == (0.5, 50_000)
    term = config.reward.terms["constant"]
    assert (term["type"], term["weight"], term["value"]) == ("constant", 1.0, 2.0)


def test_what_has_no_preset_composes_too():
    config = compose(None, ["env=pendulum", "policy=dqn", "reward=constant"])
    assert (config.env.id, config.env.n_envs, config.policy["gamma"]) == ("Pendulum-v1", 1, 0.99)
    assert config.run.name == "pendulum_dqn_constant"
    config = compose(None, ["env.id=ALE/Pong-v5", "policy=dqn"])
    assert (config.env.n_envs, config.run.name) == (2, "Pong-v5_dqn")


def test_the_type_chooses_like_the_group():
    assert compose(None, ["env=cartpole", "policy.type=dqn"]) == compose("cartpole_dqn")
    assert compose({"env": "cartpole", "policy": {"type": "dqn"}}) == compose("cartpole_dqn")
    assert compose({"env": "cartpole", "policy": "dqn"}) == compose("cartpole_dqn")


def test_seed_and_folder_work_everywhere():
    for source in ("cartpole_ppo", {"env": "cartpole"}, None):
        config = compose(source, ["env=cartpole", "seed=3", "run.dir=runs/x [1], 2"])
        assert (config.seed, config.run.dir) == (3, "runs/x [1], 2")
    assert compose("cartpole_ppo", ["run.dir=17"]).run.dir == "17"


def test_numbers_are_read_as_people_write_them():
    config = compose("cartpole_ppo", ["run.max_steps=1e6", "policy.learning_rate=3e-4"])
    assert (config.run.max_steps, config.policy["learning_rate"]) == (1_000_000, 3e-4)
    assert compose("cartpole_ppo", ["run.max_steps=20_000"]).run.max_steps == 20_000


def test_keys_can_be_added_and_removed():
    config = compose(
        "cartpole_ppo", ["+env.kwargs.sutton_barto_reward=true", "~eval.target_return"]
    )
    assert config.env.kwargs == {"sutton_barto_reward": True}
    assert config.eval.target_return is None


def test_episodes_take_the_place_of_steps_where_they_are_said():
    config = compose("cartpole_ppo", ["collect.n_episode=4"])
    assert (config.collect.n_step, config.collect.n_episode) == (None, 4)
    config = compose({"env": "cartpole", "collect": {"n_episode": 4}})
    assert (config.collect.n_step, config.collect.n_episode) == (None, 4)
    source = {"env": "cartpole", "collect": {"n_episode": 4}}
    config = compose(source, ["collect.n_step=512"])
    assert (config.collect.n_step, config.collect.n_episode) == (512, None)
    assert "not both" in refused("cartpole_ppo", "collect.n_step=512", "collect.n_episode=4")


# --- files and mappings


def test_a_python_file_gives_main_config(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from types import SimpleNamespace\n"
        "def reward(batch):\n    return batch.rew\n"
        "main_config = SimpleNamespace(\n"
        "    env=dict(id='Acrobot-v1', settings=({'a': 1},)), seed=5,\n"
        "    reward=dict(type='function', target=reward),\n"
        "    policy=dict(type='dqn', model=dict(type=SimpleNamespace, hidden=(32,))))\n"
    )
    config = compose(file, ["policy.gamma=0.5"])
    assert (config.env.id, config.env.settings, config.seed) == ("Acrobot-v1", [{"a": 1}], 5)
    assert config.policy["gamma"] == 0.5
    assert config.policy["model"] == {
        "type": SimpleNamespace,
        "hidden": [32],
        "activation": "relu",
    }
    assert config.reward.terms["function"]["target"](SimpleNamespace(rew=7)) == 7


def test_a_mapping_is_left_as_it_is():
    source = {"env": {"id": "Acrobot-v1"}, "policy": {"type": "dqn"}, "run": {"name": "mine"}}
    config = compose(source, ["policy=ppo", "env=cartpole"])
    assert (config.policy["type"], config.env.id) == ("ppo", "CartPole-v1")
    assert source == {
        "env": {"id": "Acrobot-v1"},
        "policy": {"type": "dqn"},
        "run": {"name": "mine"},
    }


def test_another_policy_takes_the_place_of_all_that_a_file_says_of_its_own():
    source = {
        "env": {"id": "CartPole-v1"},
        "policy": {"type": "dqn", "n_step": 3},
        "collect": {"buffer_size": 99, "n_step": 1},
        "run": {"max_steps": 7, "name": "mine"},
    }
    config = compose(source, ["policy=ppo"])
    assert (config.collect.buffer_size, config.collect.n_step) == (None, 256)
    assert (config.run.max_steps, config.run.name) == (7, "CartPole-v1_ppo")
    assert compose(source, ["policy=dqn"]) == compose(source)


def test_the_configuration_of_a_run_composes_to_itself(tmp_path):
    config = compose(
        "cartpole_dqn", ["reward.terms.constant.weight=2", "seed=4", "eval.episodes=3"]
    )
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    with code_of(tmp_path, trust=True):  # the fakes of these tests are code of their own
        assert compose(tmp_path) == config
    file = tmp_path / "config.yaml"
    assert compose(file) == config
    assert compose(file, ["eval.episodes=2"]).eval.n_envs == 2
    assert compose(file, ["reward=env"]).reward.terms == {"env": {"type": "env", "weight": 1.0}}


def test_empty_sections_of_a_file_say_nothing(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text("env: cartpole\npolicy:\nrun:\n")
    assert compose(file) == compose("cartpole_ppo")


def test_terms_of_a_reward_need_no_choice():
    config = compose("cartpole_ppo", ["reward.terms.env.weight=0", "reward.terms.constant.value=3"])
    assert list(config.reward.terms) == ["env", "constant"]
    assert config.run.name == "cartpole_ppo_env+constant"


ENV = {"type": "env", "weight": 1.0}


def test_changing_one_term_keeps_the_others_as_they_were():
    def terms(source, *overrides):
        return compose(source, overrides).reward.terms

    usual = REWARDS.get("constant").Config().model_dump()
    half = usual | {"type": "constant", "weight": 0.5}
    assert terms("cartpole_ppo", "reward.terms.constant.weight=0.5") == {
        "env": ENV,
        "constant": half,
    }
    # of a preset, and of a file, which are written flat
    double = usual | {"type": "constant", "weight": 1.0, "value": 2.0}
    found = terms("cartpole_dqn_constant", "reward.terms.env.weight=1")
    assert found == {"constant": double, "env": ENV}
    flat = {"env": "cartpole", "reward": {"type": "constant", "value": 2, "clip": [0, 1]}}
    assert terms(flat, "reward.terms.env.weight=1") == {"constant": double, "env": ENV}
    assert compose(flat, ["reward.terms.env.weight=1"]).reward.clip == (0, 1)
    # and under terms
    several = {"env": "cartpole", "reward": {"terms": {"env": {}, "constant": {"value": 2}}}}
    assert terms(several, "reward.terms.constant.weight=1") == {"env": ENV, "constant": double}
    assert terms(several, "~reward.terms.env") == {"constant": double}
    assert terms("cartpole_ppo", "reward.terms.constant.value=${seed}", "seed=2") == {
        "env": ENV,
        "constant": double,
    }


def test_terms_that_are_said_as_a_whole_are_all_there_are():
    for reward in ({"type": "env"}, {"terms": {"env": {}}}):
        config = compose(
            {"env": "cartpole", "reward": reward}, ["reward.terms={constant: {value: 2}}"]
        )
        assert list(config.reward.terms) == ["constant"]
        assert config.run.name == "cartpole_ppo_constant"


def test_a_file_can_refer_to_its_own_values(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("env: {id: CartPole-v1}\nseed: 3\nrun: {name: 'seed-${seed}'}")
    assert compose(file, ["seed=4"]).run.name == "seed-4"


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["carpole_ppo"],
            (
                "unknown preset 'carpole_ppo': did you mean 'cartpole_ppo'? "
                "(a file ends in .yaml or .py; an environment is chosen with env.id=ID)"
            ),
        ),
        (
            [None, "seed=3"],
            "no environment is chosen: give env=NAME (cartpole, pendulum) or env.id=ID",
        ),
        (
            [None, "env=cartpol"],
            (
                "unknown env 'cartpol': did you mean 'cartpole'? "
                "(for a Gymnasium id write env.id=cartpol)"
            ),
        ),
        ([None, "env=cartpole", "policy=qdn"], "unknown policy 'qdn': did you mean 'dqn'?"),
        (["cartpole_ppo", "reward=constnt"], "unknown reward 'constnt': did you mean 'constant'?"),
        (
            ["cartpole_ppo", "policy.learning_rat=1"],
            "unknown key 'policy.learning_rat': did you mean 'learning_rate'?",
        ),
        (
            ["cartpole_ppo", "learning_rate=1"],
            "unknown key 'learning_rate': did you mean 'policy.learning_rate'?",
        ),
        (["cartpole_ppo", "sed=1"], "unknown key 'sed': did you mean 'seed'?"),
        (["cartpole_ppo", "polcy=dqn"], "unknown key 'polcy': did you mean 'policy'?"),
        (
            ["cartpole_ppo", "hydra.run.dir=x"],
            "unknown key 'hydra.run.dir': did you mean 'run.dir'?",
        ),
        (
            ["cartpole_ppo", "seed=1,2"],
            "the override 'seed=1,2' has several values: give one, or quote the comma",
        ),
        (["cartpole_ppo", "seed"], "the override 'seed' is not of the form key=value"),
        (["cartpole_ppo", "=3"], "the override '=3' is not of the form key=value"),
        (["cartpole_ppo", "env@run=cartpole"], None),
        (
            ["cartpole_ppo", "env={n_envs: 3}"],
            "the override 'env={n_envs: 3}' has to name an option: env=NAME or env.KEY=...",
        ),
        (["cartpole_ppo", "~policy"], None),
        (["cartpole_ppo", "seed=x"], None),
        (["cartpole_ppo", "seed.x=3"], None),
        (["cartpole_ppo", "~nothing.here"], None),
        ([{"env": "cartpole", "defaults": []}], None),
        ([{"env": "cartpole", "run": {"name": "${nothing}"}}], None),
    ],
    ids=str,
)
def test_a_mistake_is_answered_in_one_sentence(arguments, sentence):
    said = refused(*arguments)
    assert "\n" not in said
    if sentence is not None:
        assert said == sentence


def test_a_file_that_is_not_there_is_named_with_its_neighbour(tmp_path):
    (tmp_path / "mine.yaml").write_text("")
    missing = tmp_path / "mien.yaml"
    assert refused(str(missing)) == (
        f"there is no config file {str(missing)!r}: did you mean 'mine.yaml'?"
    )
    assert refused("nowhere/at/all.py") == "there is no config file 'nowhere/at/all.py'"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bad.yaml", "a: [1", "is not valid YAML"),
        ("bad.yaml", "- 1\n- 2", "has to hold a mapping of sections"),
        ("bad.yaml", "env: !!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("bad.py", "config = {}", "does not define 'main_config'"),
        ("bad.py", "main_config = 3", "has to be a dict, or have attributes"),
        ("bad.py", "1 / 0", "fails with ZeroDivisionError: division by zero"),
        ("bad.toml", "", "has to end in .yaml, .yml or .py"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, text, said):
    file = tmp_path / name
    file.write_text(text)
    sentence = refused(file)
    assert repr(str(file)) in sentence
    assert said in sentence
    assert "\n" not in sentence


# --- Hydra stays behind the curtain


def test_composition_repeats_from_any_folder_and_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers, level = list(logging.root.handlers), logging.root.level
    before = set(tmp_path.iterdir())
    first = compose("cartpole_ppo", ["seed=1"])
    refused("cartpole_ppo", "sed=1")
    assert all(compose("cartpole_ppo", ["seed=1"]) == first for _ in range(3))
    assert (logging.root.handlers, logging.root.level) == (handlers, level)
    assert set(tmp_path.iterdir()) == before
    assert not GlobalHydra.instance().is_initialized()


def test_an_application_of_hydra_can_call_it(tmp_path):
    (tmp_path / "app.yaml").write_text("mine: 1")
    store = ConfigStore.instance()
    store.store(group="policy", name="ppo", node={"theirs": True})
    try:
        with hydra.initialize_config_dir(str(tmp_path), version_base="1.2"):
            assert compose("cartpole_ppo").policy["type"] == "ppo"
            assert hydra.compose("app", ["+policy=ppo"]) == {"mine": 1, "policy": {"theirs": True}}
    finally:
        del store.repo["policy"]


def test_threads_can_compose_at_once():
    found = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(compose("cartpole_ppo", [f"seed={n}"])))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(config.seed for config in found) == list(range(8))


def test_a_reward_with_a_checkpoint_stays_as_it_is_unless_somebody_says_otherwise():
    plain = compose("cartpole_ppo")
    assert plain.reward.cotrain is True
    begun = ["reward.checkpoint_path=runs/x"]
    assert compose("cartpole_ppo", begun).reward.cotrain is False
    assert compose("cartpole_ppo", [*begun, "reward.cotrain=true"]).reward.cotrain is True
    # A whole config says everything, but not because somebody wanted it.
    assert compose(plain.model_dump(), begun).reward.cotrain is False
    assert compose({**plain.model_dump(), "seed": 3}).reward.cotrain is True
