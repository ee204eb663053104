"""The layout of the nerveX tutorial, for policies of guerdon's own; test_entry has the others."""

import copy

import pytest

from guerdon.compat.keys import Report, merged
from guerdon.config import ConfigError
from guerdon.entry import compose

pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon")
LAYOUT = {
    "env": {
        "env_manager_type": "aynsc_subprocess",
        "import_names": ["app_zoo.classic_control.cartpole.envs", "math"],
        "env_type": "cartpole",
        "actor_env_num": 4,
        "evaluator_env_num": 3,
    },
    "policy": {
        "use_cuda": True,
        "policy_type": "dqn",
        "import_names": ["nervex.policy.dqn", "cmath"],
        "on_policy": False,
        "model": {"obs_dim": 4, "action_dim": 2, "hidden_dim_list": [32, 16], "dueling": True},
        "learn": {
            "train_step": 3,
            "batch_size": 16,
            "learning_rate": 0.01,
            "algo": {"target_update_freq": 100, "discount_factor": 0.97, "nstep": 2},
        },
        "collect": {"traj_len": 1, "unroll_len": 1, "algo": {"nstep": 2}},
        "command": {"eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 900}},
    },
    "replay_buffer": {"meta_maxlen": 5_000},
    "actor": {"n_sample": 6},
    "evaluator": {"n_episode": 5, "stop_val": 195},
    "commander": {},
}


def layout(**policy):
    found = copy.deepcopy(LAYOUT)
    found["policy"] |= policy
    return found


def refused(values) -> str:
    with pytest.raises(ConfigError) as error:
        compose(values)
    return str(error.value)


def test_every_part_finds_its_place():
    values = layout()
    config = compose(values)
    assert values == LAYOUT
    assert (config.env.id, config.env.n_envs) == ("CartPole-v1", 4)
    assert config.env.backend == "async_subprocess"
    assert (config.env.imports, config.imports) == (["math"], ["cmath"])
    assert (config.collect.n_step, config.collect.buffer_size) == (6, 5_000)
    assert (config.learn.batch_size, config.learn.updates_per_collect) == (16, 3)
    assert (config.eval.episodes, config.eval.n_envs, config.eval.target_return) == (5, 3, 195)
    assert config.run.device == "auto"  # theirs uses a GPU if there is one
    assert config.env.max_episode_steps == 200  # CartPole-v0, which 195 is the goal of
    policy = config.policy
    assert (policy["type"], policy["gamma"], policy["n_step"]) == ("dqn", 0.97, 2)
    assert (policy["learning_rate"], policy["target_update_every"]) == (0.01, 100)
    assert (policy["model"]["hidden"], policy["model"]["dueling"]) == ([32, 16], True)
    # 900 updates are 1800 steps: 3 follow 6 steps.
    assert policy["epsilon"] == {"start": 0.95, "end": 0.1, "decay": 1_800, "type": "exp"}


def test_the_best_is_selected_by_the_environments_return():
    assert compose(layout()).eval.select_by == "env"
    assert compose(merged(CREATE, MAIN)).eval.select_by == "env"
    assert compose(layout() | {"eval": {"select_by": "reward"}}).eval.select_by == "reward"
    assert compose("cartpole_ppo").eval.select_by == "reward"
    assert compose({"env": "cartpole", "policy": {"type": "dqn"}}).eval.select_by == "reward"


def warned(values) -> dict[str, list[str]]:
    """The keys in the warning, by reason."""
    report = Report()
    with pytest.warns(UserWarning, match="are ignored: ") as found:
        compose(values, report=report)
    assert len(found) == 1
    assert all(f"({reason})" in str(found[0].message) for reason in report.reasons())
    return report.reasons()


def test_keys_without_a_meaning_are_named_in_one_warning_with_the_reason():
    assert warned(layout()) == {
        "guerdon has its own policies, environments and rewards": [
            "app_zoo.classic_control.cartpole.envs",
            "nervex.policy.dqn",
        ],
        "spaces and networks follow the environment": [
            "policy.model.obs_dim",
            "policy.model.action_dim",
        ],
        "transitions are stored one by one, and read with what follows them": [
            "policy.collect.traj_len",
            "policy.collect.unroll_len",
        ],
    }


def test_guerdons_own_keys_go_before():
    values = layout(gamma=0.5) | {"collect": {"n_step": 9}}
    config = compose(values, ["learn.batch_size=17"])
    assert (config.policy["gamma"], config.collect.n_step) == (0.5, 9)
    assert config.learn.batch_size == 17


def test_an_on_policy_policy_needs_no_buffer_and_no_number_of_updates():
    learn = {"train_step": 5, "batch_size": 32, "learning_rate": 0.01}
    values = layout(policy_type="ppo", learn=learn, command={}, model={"hidden_dim_list": [8]})
    values["actor"] = {"n_sample": 64}
    config = compose(values)
    assert (config.collect.n_step, config.learn.batch_size) == (64, 32)
    assert (config.collect.buffer_size, config.learn.updates_per_collect) == (None, 1)
    assert config.policy["learning_rate"] == 0.01


def test_what_has_no_counterpart_is_named():
    learn = LAYOUT["policy"]["learn"] | {"weight_decay": 0.1, "ignore_done": False}
    values = layout(learn=learn, use_prioriti=3) | {"actor": {"n_sample": 6, "speed": 1}}
    reasons = warned(values)
    assert reasons["Adam has no weight decay"] == ["policy.learn.weight_decay"]
    assert reasons["not known to guerdon"] == ["policy.use_prioriti", "actor.speed"]
    assert "policy.learn.ignore_done" not in str(reasons)  # it is off


def test_a_section_that_is_none_is_left_to_validation():
    assert refused(layout() | {"collect": 3}).startswith("'collect' is 3")
    assert warned(layout() | {"learner": 3})["not known to guerdon"] == ["learner"]


def test_another_policy_can_be_chosen():
    config = compose(layout(), ["policy=ppo"])
    assert config.policy["type"] == "ppo"
    assert (config.env.n_envs, config.collect.buffer_size) == (4, None)


# --- DI-engine

MAIN = {
    "exp_name": "cartpole_dqn_gail",
    "env": {
        "collector_env_num": 4,
        "evaluator_env_num": 3,
        "n_evaluator_episode": 5,
        "stop_value": 195,
    },
    "reward_model": {
        "hidden_size": 32,
        "batch_size": 16,
        "update_per_collect": 3,
        "clear_buffer_per_iters": 2,
        "expert_data_path": "expert_data.pkl",
    },
    "policy": {
        "cuda": False,
        "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [32, 16]},
        "nstep": 2,
        "discount_factor": 0.97,
        "priority": True,
        "learn": {"batch_size": 16, "learning_rate": 0.01, "update_per_collect": 3,
                  "target_update_freq": 100},
        "collect": {"n_sample": 6},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 900},
            "replay_buffer": {"replay_buffer_size": 5_000},
        },
    },
}  # fmt: skip
CREATE = {
    "env": {"type": "cartpole", "import_names": ["dizoo.classic_control.cartpole.envs"]},
    "env_manager": {"type": "subprocess"},
    "policy": {"type": "dqn"},
    "reward_model": {"type": "gail"},
}


def test_di_engines_layout_is_understood_too():
    config = compose(merged(CREATE, MAIN))
    assert (config.env.id, config.env.n_envs) == ("CartPole-v1", 4)
    assert (config.env.backend, config.env.imports) == ("subprocess", [])
    assert (config.eval.episodes, config.eval.n_envs, config.eval.target_return) == (5, 3, 195)
    assert (config.collect.n_step, config.collect.buffer_size) == (6, 5_000)
    assert (config.learn.batch_size, config.learn.updates_per_collect) == (16, 3)
    assert (config.run.name, config.run.device) == ("cartpole_dqn_gail", "cpu")
    policy = config.policy
    assert (policy["gamma"], policy["n_step"], policy["prioritized"]) == (0.97, 2, True)
    assert (policy["learning_rate"], policy["target_update_every"]) == (0.01, 100)
    assert policy["model"]["hidden"] == [32, 16]
    # There it counts steps of the environments, as here.
    assert policy["epsilon"] == {"start": 0.95, "end": 0.1, "decay": 900, "type": "exp"}
    gail = config.reward.terms["gail"]
    assert {key: gail[key] for key in MAIN["reward_model"]} == MAIN["reward_model"]


def test_red_takes_di_engines_option_that_has_no_meaning_for_it():
    values = merged(CREATE, MAIN)
    values["reward_model"] |= {"type": "red", "sample_size": 1000, "sigma": 5, "hidden_size": 128}
    reason = "this reward keeps no such data"
    assert warned(values)[reason] == ["reward_model.clear_buffer_per_iters"]
    config = compose(values)
    red = config.reward.terms["red"]
    given = values["reward_model"].keys() - {"clear_buffer_per_iters"}
    assert {key: red[key] for key in given} == {key: values["reward_model"][key] for key in given}


def test_a_file_of_di_engine_is_understood(tmp_path):
    file = tmp_path / "config.py"
    file.write_text(f"main_config = {MAIN!r}\ncreate_config = {CREATE!r}\n")
    config = compose(file)
    assert config.reward.terms["gail"]["hidden_size"] == 32
    assert config.policy["type"] == "dqn"


def test_a_section_reward_goes_before_reward_model():
    values = merged(CREATE, MAIN) | {"reward": {"type": "constant"}}
    assert list(compose(values).reward.terms) == ["constant"]


def test_an_unknown_key_of_a_reward_model_is_named():
    values = merged(CREATE, MAIN)
    values["reward_model"]["hiden_size"] = 3
    assert refused(values) == "unknown key 'reward.hiden_size': did you mean 'hidden_size'?"


def test_merging_leaves_both_as_they_are():
    weak, strong = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "e": {"f": 5}}
    assert merged(weak, strong) == {"a": {"b": 1, "c": 4}, "d": 3, "e": {"f": 5}}
    assert (weak, strong) == ({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "e": {"f": 5}})
    assert merged(None, strong) == strong
