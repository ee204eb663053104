"""Policies and rewards in ONNX: onnxruntime gives the same numbers."""

from dataclasses import replace

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces

import guerdon
from guerdon.data import Batch
from guerdon.lab.export import EXPORTABLE
from guerdon.policy import Policy, create_policy
from guerdon.reward import Reward, Setting, Term, make_reward
from tests.policy.spaces_env import ACTIONS, OBSERVATIONS
from tests.reward.seeing import SIZE, loaded, weights, write_fit
from tests.rounding import assert_close

SPACES = {
    **OBSERVATIONS,
    "nested": spaces.Dict(
        inner=spaces.Dict(place=OBSERVATIONS["double"]), pair=spaces.Tuple([spaces.Discrete(2)] * 2)
    ),
}
SIZES = (1, 5)


def sample(space, number):
    """A batch of observations, with tuples as dictionaries."""
    if isinstance(space, spaces.Dict):
        return {key: sample(part, number) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(key): sample(part, number) for key, part in enumerate(space.spaces)}
    return np.stack([space.sample() for _ in range(number)]).astype(space.dtype)


def flat(tree, prefix=""):
    """The inputs of a graph by name."""
    found = {}
    for key, part in tree.items():
        inner = isinstance(part, dict)
        found |= flat(part, f"{prefix}{key}.") if inner else {f"{prefix}{key}": part}
    return found


def run(path, inputs):
    """The only output of a file."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, flat(inputs))
    return output


# --- policies


def make_policy(name, observation, action, **options):
    """A policy whose actions differ, with statistics of observations."""
    space = SPACES[observation]
    space.seed(0)
    config = {"type": name, "model": {"hidden": [8], "normalize_obs": True, **options}}
    policy = create_policy(config, space, ACTIONS[action], seed=1)
    policy.normalize_by(sample(space, 50))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=policy.generator))
    return policy


@pytest.mark.parametrize(
    ("name", "observation", "action"),
    [
        ("ppo", "vector", "discrete_from_5"),
        ("ppo", "vector", "box"),
        ("ppo", "double", "box_double"),
        ("ppo", "dict", "discrete"),
        ("ppo", "nested", "box_2_by_3"),
        ("a2c", "number", "discrete"),
        ("dqn", "vector", "discrete_from_minus_1"),
        ("dqn", "image", "discrete"),
        ("sac", "vector", "box_double"),
        ("sac", "double", "discrete_from_5"),
        ("td3", "vector", "box"),
        ("ddpg", "dict", "box_one_fixed"),
    ],
)
def test_a_policy_acts_as_predict_does(name, observation, action, tmp_path):
    policy, path = make_policy(name, observation, action), tmp_path / "policy.onnx"
    guerdon.export(policy, path)
    for number in SIZES:
        obs = sample(SPACES[observation], number)
        found = run(path, obs if isinstance(obs, dict) else {"obs": obs})
        wanted = policy.predict(obs)
        assert found.dtype == wanted.dtype == ACTIONS[action].dtype
        assert_close(found, wanted, atol=1e-5)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"]


def test_actions_beyond_the_bounds_are_clipped(tmp_path):
    policy, path = make_policy("ppo", "vector", "box"), tmp_path / "policy.onnx"
    guerdon.export(policy, path)
    found = run(path, {"obs": 100 * sample(SPACES["vector"], 50)})
    space = ACTIONS["box"]
    assert {*found[:, 0].tolist()} >= {-2.0, 2.0}
    assert all(space.contains(act) for act in found)


@pytest.mark.parametrize("keys", [["place"], ["kind", "place"]])
def test_only_the_parts_that_a_policy_sees_are_inputs(keys, tmp_path):
    policy, path = make_policy("dqn", "dict", "discrete", keys=keys), tmp_path / "policy.onnx"
    assert guerdon.export(policy, path).keys() == {*keys, "action"}
    obs = sample(SPACES["dict"], 5)
    found = run(path, {key: obs[key] for key in keys})
    np.testing.assert_array_equal(found, policy.predict(obs))


def test_names_types_and_shapes_are_returned(tmp_path):
    policy = make_policy("ppo", "nested", "box_2_by_3")
    assert guerdon.export(policy, tmp_path / "new" / "policy.onnx") == {
        "inner.place": "float64 [batch, 3]",
        "pair.0": "int64 [batch]",
        "pair.1": "int64 [batch]",
        "action": "float32 [batch, 2, 3]",
    }


def test_an_export_changes_nothing(tmp_path):
    policy = make_policy("ppo", "vector", "discrete").train()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    guerdon.export(policy, tmp_path / "policy.onnx")
    assert policy.training
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert all(parameter.requires_grad for parameter in policy.model.parameters())


def test_critics_are_not_in_the_file(tmp_path):
    sizes = []
    for n_critics in (1, 8):
        config = {"type": "td3", "model": {"hidden": [64]}, "n_critics": n_critics}
        policy = create_policy(config, OBSERVATIONS["vector"], ACTIONS["box"])
        guerdon.export(policy, tmp_path / "policy.onnx")
        sizes.append((tmp_path / "policy.onnx").stat().st_size)
    assert sizes[0] == sizes[1]


def test_a_policy_without_best_action_is_refused(tmp_path):
    policy = type("Mine", (Policy,), {})({}, OBSERVATIONS["vector"], ACTIONS["discrete"])
    with pytest.raises(ValueError, match="Mine cannot be exported: it has to implement 'best_"):
        guerdon.export(policy, tmp_path / "policy.onnx")


# --- rewards

SHORT = {
    "policy": {"model": {"hidden": [8]}},
    "collect": {"n_step": 64},
    "learn": {"batch_size": 32},
    "eval": {"episodes": 1, "every": 128},
    "display": "none",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs with a learned reward, made when they are first needed."""
    root = tmp_path_factory.mktemp("runs")

    def get(name, *options):
        directory = root / name
        if not directory.exists():
            guerdon.train(
                "cartpole_fixed_ppo_gail", *options,
                **SHORT, run={"max_steps": 128, "dir": directory},
            )  # fmt: skip
        return directory

    return get


def transitions(observation, action, number):
    """Random transitions."""
    numbers = np.random.default_rng(number)
    observation.seed(number)
    action.seed(number)
    return {
        "obs": sample(observation, number),
        "act": sample(action, number),
        "obs_next": sample(observation, number),
        "terminated": numbers.random(number) < 0.5,
        "rew": numbers.normal(size=number).astype(np.float32),
    }


def assert_equal_scores(path, reward, names, observation, action):
    for number in SIZES:
        rows = transitions(observation, action, number)
        found = run(path, {name: rows[name] for name in names})
        wanted = reward.score(Batch(rows))
        assert found.shape == wanted.shape == (number,)
        assert_close(found, wanted, atol=1e-5)
    assert number == 1 or np.ptp(wanted) > 0


@pytest.mark.parametrize(
    ("name", "options", "names"),
    [
        ("gail", [], {"obs", "act"}),
        (
            "rnd",
            ["reward=rnd", "reward.terms.rnd.warmup=0", "reward.scale=0.5"],
            {"obs_next", "rew"},
        ),
    ],
)
def test_the_reward_of_a_run_scores_as_score_does(name, options, names, runs, tmp_path):
    directory, path = runs(name, *options), tmp_path / "reward.onnx"
    assert guerdon.export(directory, path, part="reward").keys() == {*names, "reward"}
    reward = guerdon.load_reward(directory)
    env = gymnasium.make("guerdon/CartPoleFixed-v0")
    assert_equal_scores(path, reward, names, env.observation_space, env.action_space)


SETTING = Setting(SPACES["dict"], ACTIONS["discrete_from_5"], horizon=10, log_prob=max, frozen=True)


def made(name, setting=SETTING, **options):
    """An untrained reward, whose networks differ from 0."""
    reward = make_reward({"type": name, **options}, setting)
    for model in reward.models:
        model.collected = 10**6  # novelty is 0 in the warm-up
    return reward


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in EXPORTABLE if name != "classifier"),
        ("gail", {"absorbing": True, "spectral_norm": True, "inputs": ["obs", "obs_next"]}),
        ("trex", {"output": "tanh", "inputs": ["obs_next"]}),
        ("ensemble", {"of": {"type": "fairl"}, "pessimism": 1.0}),
    ],
)
def test_networks_over_transitions_can_be_exported(name, options, tmp_path):
    reward, path = made(name, **options), tmp_path / "reward.onnx"
    names = {each.partition(".")[0] for each in guerdon.export(reward, path)} - {"reward"}
    assert_equal_scores(path, reward, names, SETTING.observation_space, SETTING.action_space)


def test_a_sum_is_weighted_scaled_and_clipped(tmp_path):
    terms = {
        "airl": Term(made("airl").models[0], 2.0),
        "constant": Term(made("constant").models[0], 1.0),
    }
    reward, path = Reward(terms, scale=3.0), tmp_path / "reward.onnx"
    rows = transitions(SETTING.observation_space, SETTING.action_space, SIZES[-1])
    low, *_, high = np.sort(reward.score(Batch(rows)))
    reward.clip = (low + 0.1 * (high - low), high - 0.1 * (high - low))
    names = {each.partition(".")[0] for each in guerdon.export(reward, path)} - {"reward"}
    assert names == {"obs", "act"}
    assert_equal_scores(path, reward, names, SETTING.observation_space, SETTING.action_space)
    assert reward.reward_stats() == {}


def first_number(batch):
    """A reward of the user's."""
    return batch.obs.place[..., 0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("env", {}),
        ("constant", {}),
        ("function", {"target": first_number}),
        ("ngu", {}),
        ("pwil", {}),
        ("pdeil", {}),
        ("sqil", {}),
    ],
)
def test_other_rewards_are_refused(name, options, tmp_path):
    setting = replace(SETTING, on_policy=name != "sqil")
    message = rf"the reward {name}.* cannot be exported.*: only networks over single .* gail, airl,"
    with pytest.raises(ValueError, match=message):
        guerdon.export(made(name, setting, **options), tmp_path / "reward.onnx")
    assert not (tmp_path / "reward.onnx").exists()


# --- success classifiers


def images_of(cameras, number):
    """Random images."""
    numbers, shape = np.random.default_rng(number), (number, 3, SIZE, SIZE)
    return {key: numbers.integers(0, 256, shape, np.uint8) for key in cameras}


def check_classifier(model, cameras, path):
    described = dict.fromkeys(cameras, f"uint8 [batch, 3, {SIZE}, {SIZE}]")
    assert guerdon.export(make_reward(model), path) == {
        **described, "probability": "float32 [batch]",
    }  # fmt: skip
    for size in SIZES:
        images = images_of(cameras, size)
        found = run(path, images)
        assert_close(found, model.probability(images), atol=1e-5)
    return found


def test_a_classifier_predicts_success(tmp_path):
    model = loaded(weights(temperature=2.0))
    found = check_classifier(model, ["base_camera"], tmp_path / "success.onnx")
    assert (found > 0).all()


@pytest.mark.slow
def test_refitted_classifiers_of_several_cameras_predict_success(tmp_path):
    model = loaded(weights(3, image_keys=["left", "right"]), pessimism=0.5, threshold=1e-3)
    refit = model._start_refit()
    refit.trained = 1
    images = {key: torch.from_numpy(x) for key, x in images_of(model.image_keys, SIZES[-1]).items()}
    low, high = torch.sigmoid(refit.network(images)).detach().sort().values[1:3].tolist()
    changed = model.config.model_copy(update={"min_likeness": (low + high) / 2})
    model.config = refit.config = changed
    found = check_classifier(model, ["left", "right"], tmp_path / "success.onnx")
    assert (found == 0).any()
    assert (found > 0).any()


def test_a_fit_is_exported_as_its_classifier(tmp_path):
    folder = write_fit(tmp_path / "fit")
    assert "probability" in guerdon.export(folder, tmp_path / "success.onnx")
