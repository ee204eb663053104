"""Options that a policy does not read are refused where the user sets them."""

import pytest

from guerdon.compat.nervex.policy import CommonPolicy
from guerdon.config import ConfigError, compose, sources, to_yaml
from guerdon.config.schema import unread
from guerdon.policy import A2C, DQN, PPO, SAC

ON_POLICY = ["collect.buffer_size", "collect.warmup_steps", "learn.updates_per_collect"]


class Rollouts(CommonPolicy):
    on_policy, offline, uses_reward = True, False, True


class Unsaid(PPO):
    def learn(self, batch, **options):
        return super().learn(batch, **options)


class Whole(PPO):
    ignores = ("learn.repeat",)


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        (PPO, ON_POLICY),
        (A2C, [*ON_POLICY, "learn.batch_size", "learn.repeat"]),
        (Rollouts, ON_POLICY),
        (Unsaid, ON_POLICY),
        (Whole, [*ON_POLICY, "learn.repeat"]),
        (DQN, ["learn.repeat"]),
        (SAC, ["learn.repeat"]),
        (CommonPolicy, ["learn.repeat"]),
    ],
)
def test_what_a_policy_does_not_read_is_known(policy, keys):
    assert unread(policy, {}) == keys


def test_options_may_make_a_policy_on_policy():
    assert unread(CommonPolicy, {"on_policy": True}) == ON_POLICY
    assert unread(Rollouts, {"on_policy": False}) == ["learn.repeat"]
    assert unread(DQN, {"on_policy": True}) == ["learn.repeat"]


@pytest.mark.parametrize(
    ("preset", "override", "fix"),
    [
        ("cartpole_ppo", "collect.warmup_steps=5", "leave it out"),
        ("cartpole_ppo", "collect.buffer_size=5000", "leave it out"),
        ("cartpole_ppo", "learn.updates_per_collect=2", "use 'learn.repeat'"),
        ("cartpole_a2c", "learn.batch_size=32", "leave it out"),
        ("cartpole_a2c", "learn.repeat=2", "leave it out"),
        ("cartpole_a2c", "learn.updates_per_collect=2", "leave it out"),
        ("cartpole_dqn", "learn.repeat=2", "use 'learn.updates_per_collect'"),
    ],
)
def test_an_option_without_effect_is_refused(preset, override, fix):
    (key, value), policy = override.split("="), preset.partition("_")[2]
    section, _, option = key.partition(".")
    sentence = f"{key!r} is {value}, but {policy} does not read it: {fix}"
    for source, overrides in (
        (preset, [override]),
        (preset, [f"{section}={{{option}: {value}}}"]),
        ({"env": "cartpole", "policy": policy, section: {option: int(value)}}, []),
    ):
        with pytest.raises(ConfigError) as error:
            compose(source, overrides)
        assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("choices", "option", "reason"),
    [
        ("policy=dqn", "policy.alpha=0.5", "'policy.prioritized' is False"),
        ("policy=dqn", "policy.beta=0.5", "'policy.prioritized' is False"),
        ("policy=dqn policy.tau=0.1", "policy.target_update_every=7", "'policy.tau' is 0.1"),
        ("policy=dqn", "policy.model.share_encoder=true", "'policy.model.type' is None"),
        ("policy=ppo", "policy.model.dueling=true", "'policy.model.type' is None"),
        ("policy=a2c", "policy.model.dueling=true", "'policy.model.type' is None"),
        ("policy=td3", "policy.model.dueling=true", "'policy.model.type' is None"),
        ("policy=ddpg", "policy.model.share_encoder=true", "'policy.model.type' is None"),
        ("policy=sac", "policy.noise_correlation=0.5", "'policy.exploration_noise' is 0.0"),
        ("policy=sac policy.temperature=1", "policy.target_entropy=-1",
         "'policy.temperature' is 1.0"),
        ("policy=sac policy.target_entropy=0.1", "policy.target_entropy_share=0.4",
         "'policy.target_entropy' is 0.1"),
        ("policy=td3 policy.target_noise=0", "policy.target_noise_clip=0.1",
         "'policy.target_noise' is 0.0"),
        ("reward=rnd reward.update_per_collect=3", "reward.max_updates=5",
         "'reward.update_per_collect' is 3"),
        ("reward=ngu reward.update_per_collect=3", "reward.update_proportion=0.5",
         "'reward.update_per_collect' is 3"),
        ("reward=icm", "reward.eta=0.5", "'reward.normalize_bonus' is True"),
        ("reward=preference reward.queries=uniform", "reward.candidates=5",
         "'reward.queries' is uniform"),
        ("reward=preference reward.rounds=0", "reward.schedule=constant", "'reward.rounds' is 0"),
        ("reward.collect_data=false", "reward.data_collection.format=npy",
         "'reward.collect_data' is False"),
    ],
)  # fmt: skip
def test_an_option_that_needs_another_one_is_refused_without_it(choices, option, reason):
    overrides = ["env.id=CartPole-v1", *choices.split()]
    config = compose(None, overrides)
    assert compose(sources.plain(config.model_dump())) == config, "all defaults may be said"
    with pytest.raises(ConfigError) as error:
        compose(None, [*overrides, option])
    key = "reward.data_collection" if "data_c" in option else option.partition("=")[0]
    assert str(error.value) == f"{key!r} has no effect, since {reason}: leave it out"


@pytest.mark.parametrize("option", ["learning_rate=0.1", "forget=0.5", "positive_dir=mine"])
def test_an_option_of_refitting_is_refused_without_it(option):
    refit = ["reward=classifier", "reward.checkpoint_path=fit", f"reward.{option}"]
    key = f"'reward.{option.partition('=')[0]}'"
    said = f"^{key} has no effect, since 'reward.cotrain' is False: leave it out$"
    with pytest.raises(ConfigError, match=said):
        compose("cartpole_ppo", refit)
    assert compose("cartpole_ppo", [*refit, "reward.cotrain=true"])
    assert compose("cartpole_ppo", [*refit[:2], "reward.min_likeness=0.1"])  # a fitted one reads it


def test_a_term_without_effect_is_named_by_its_path():
    terms = {"env": {}, "new": {"type": "rnd", "update_per_collect": 3, "max_updates": 5}}
    with pytest.raises(ConfigError, match=r"^'reward.terms.new.max_updates' has no effect, since"):
        compose({"env": "cartpole", "policy": "ppo", "reward": {"terms": terms}})


def test_an_override_that_makes_a_presets_option_idle_resets_it():
    config = compose("cartpole_sac", ["policy.temperature=0.2"])
    assert config.policy["target_entropy_share"] == 0.5
    assert (
        compose("cartpole_sac", ["policy.temperature=auto"]).policy["target_entropy_share"] == 0.3
    )
    source = {"env": "cartpole", "policy": {"type": "dqn", "target_update_every": 7}}
    assert compose(source, ["policy.tau=0.1"]).policy["target_update_every"] == 250


@pytest.mark.parametrize(
    ("backend", "option"),
    [("auto", "timeout=5"), ("base", "max_restarts=3"), ("subprocess", "wait_num=2")],
)
def test_an_option_that_the_backend_does_not_read_is_refused(backend, option):
    key, _, value = option.partition("=")
    with pytest.raises(ConfigError) as error:
        compose("cartpole_ppo", [f"env.backend={backend}", f"env.{option}"])
    assert str(error.value).startswith(f"'env.{key}' is {value}")
    assert str(error.value).endswith(f"but env.backend={backend} does not read it: leave it out")
    compose("cartpole_ppo", ["env.backend=async_subprocess", f"env.{option}"])
    changed = f"env.eval={{backend: async_subprocess, {key}: {value}}}"
    compose("cartpole_ppo", [f"env.backend={backend}", changed])


def test_another_policy_takes_what_a_file_says_with_it():
    source = {"env": "cartpole", "policy": "dqn", "collect": {"warmup_steps": 7}}
    assert compose(source, ["policy=ppo"]).collect.warmup_steps == 0


def test_the_default_may_be_said():
    compose("cartpole_ppo", ["collect.warmup_steps=0", "collect.buffer_size=null"])
    compose("cartpole_dqn", ["learn.repeat=1"])


def test_what_the_policy_says_itself_is_no_mistake(tmp_path, monkeypatch):
    monkeypatch.setattr(A2C, "defaults", {"collect": {"n_step": 8}, "learn": {"batch_size": 99}})
    config = compose(None, ["env.id=CartPole-v1", "policy=a2c"])
    assert config.collect.n_step == 8  # fewer than the batch size that nobody reads
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert compose(tmp_path) == config
