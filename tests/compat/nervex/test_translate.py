"""Configs of nerveX and DI-engine for every policy, in their shapes; none of them is copied."""

import pytest

import guerdon
from guerdon.compat.keys import Report, get, merged
from guerdon.compat.nervex.policy import CommonPolicy
from guerdon.config import ConfigError
from guerdon.entry import compose
from guerdon.policy import POLICIES

pytestmark = pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon")


@pytest.fixture
def registry():
    before = dict(POLICIES._classes)
    yield POLICIES
    POLICIES._classes.clear()
    POLICIES._classes.update(before)


def nervex(policy, env="pendulum", /, **sections):
    """A config of nerveX; sections are merged into it."""
    base = {
        "env": {"env_manager_type": "base", "env_type": env, "actor_env_num": 4},
        "policy": {"use_cuda": False, "policy_type": policy, "command": {}},
        "replay_buffer": {"buffer_name": ["agent"], "agent": {"meta_maxlen": 9_000}},
        "actor": {"n_sample": 32},
        "evaluator": {"n_episode": 6, "eval_freq": 20, "stop_val": -250},
        "learner": {"load_path": "", "hook": {"log_show": {"ext_args": {"freq": 50}}}},
        "commander": {},
    }
    return merged(base, sections)


def di_engine(policy, env="pendulum", /, **sections):
    """A pair of DI-engine's configs, merged; sections are merged into it."""
    base = {
        "exp_name": "mine",
        "env": {"type": env, "collector_env_num": 4, "evaluator_env_num": 2, "stop_value": -250},
        "env_manager": {"type": "subprocess"},
        "policy": {
            "type": policy,
            "cuda": True,
            "other": {"replay_buffer": {"replay_buffer_size": 9_000}},
        },
    }
    return merged(base, sections)


def values(source, *keys):
    config = compose(source).model_dump()
    return [get(config, key) for key in keys]


# --- nerveX


def test_ppo_and_a2c():
    learn = {
        "train_step": 5, "batch_size": 64, "learning_rate": 0.002,
        "algo": {"value_weight": 0.3, "entropy_weight": 0.02, "clip_ratio": 0.1},
    }  # fmt: skip
    collect = {"traj_len": "inf", "algo": {"discount_factor": 0.9, "gae_lambda": 0.8}}
    model = {"embedding_dim": 32}
    ppo = nervex("ppo", policy={"learn": learn, "collect": collect, "model": model})
    keys = ("gamma", "gae_lambda", "value_coefficient", "entropy_coefficient", "learning_rate")
    keys = [f"policy.{key}" for key in keys]
    assert values(ppo, *keys) == [0.9, 0.8, 0.3, 0.02, 0.002]
    assert values(ppo, "policy.clip_range", "policy.model.hidden") == [0.1, [32, 128]]
    # A rollout has a batch at least; five batches of 64 from 64 steps are five passes.
    assert values(ppo, "collect.n_step", "learn.repeat", "learn.batch_size") == [64, 5, 64]
    # 64 steps have 5 updates: 20 updates are 256 steps, and 50 are 640.
    assert values(ppo, "eval.every", "run.log_every") == [256, 640]
    learn["algo"] = {"use_adv_norm": True, "value_weight": 0.3, "entropy_weight": 0.02}
    a2c = nervex("a2c", policy={"on_policy": True, "learn": learn, "collect": collect})
    assert values(a2c, *keys) == [0.9, 0.8, 0.3, 0.02, 0.002]
    assert values(a2c, "collect.n_step", "policy.normalize_advantage") == [64, True]
    a2c["actor"]["n_sample"] = 200  # of which each update sees a batch
    report = Report()
    assert compose(a2c, report=report).collect.n_step == 64
    assert ("actor.n_sample", "collect.n_step", 64) in report.taken
    del learn["batch_size"]
    assert values(a2c, "collect.n_step") == [200]


@pytest.mark.parametrize("twin", [True, False])
def test_ddpg_with_parts_of_td3_is_td3(twin):
    learn = {
        "train_step": 2, "batch_size": 128, "learning_rate_actor": 0.001,
        "learning_rate_critic": 0.002, "init_data_count": 500,
        "algo": {
            "target_theta": 0.01, "discount_factor": 0.95, "actor_update_freq": 2,
            "use_twin_critic": twin, "use_noise": True, "noise_sigma": 0.3,
            "noise_range": {"min": -0.4, "max": 0.4},
        },
    }  # fmt: skip
    part = {
        "model": {"use_twin_critic": twin},
        "learn": learn,
        "collect": {"algo": {"noise_sigma": 0.15}},
    }
    td3 = nervex("ddpg", policy=part)
    assert values(td3, "policy.type", "policy.n_critics") == ["td3", 2 if twin else 1]
    keys = [f"policy.{key}" for key in ("tau", "gamma", "actor_every", "exploration_noise")]
    assert values(td3, *keys) == [0.01, 0.95, 2, 0.15]
    assert values(td3, "policy.target_noise", "policy.target_noise_clip") == [0.3, 0.4]
    assert values(td3, "policy.learning_rate", "collect.warmup_steps") == [0.002, 500]
    assert values(td3, "eval.every", "run.log_every") == [320, 800]


def test_ddpg():
    part = {
        "learn": {"batch_size": 16, "algo": {"actor_update_freq": 1, "use_noise": False}},
        "model": {"use_twin_critic": False},
    }
    ddpg = nervex("ddpg", policy=part)
    assert values(ddpg, "policy.type", "policy.target_noise") == ["ddpg", 0]
    assert values(ddpg, "collect.warmup_steps") == [16]  # nothing is learned before


@pytest.mark.parametrize(("auto", "temperature"), [(True, "auto"), (False, 1)])
def test_sac(auto, temperature):
    algo = {"alpha": 1, "is_auto_alpha": auto, "use_twin_q": True, "target_theta": 0.02}
    learn = {"learning_rate_q": 0.001, "learning_rate_policy": 0.002, "algo": algo}
    sac = nervex("sac", policy={"learn": learn, "model": {"use_twin_q": True}})
    assert values(sac, "policy.temperature", "policy.tau") == [temperature, 0.02]
    report = Report()
    assert compose(sac, report=report).policy["learning_rate"] == 0.001
    reason = report.dropped["policy.learn.learning_rate_policy"]
    assert reason == "'policy.learning_rate' is 0.001 already"


def test_vanilla_dqn_and_buffers_with_names():
    algo = {"target_update_freq": 70, "discount_factor": 0.97}
    part = {"learn": {"algo": algo}, "model": {"embedding_dim": 48}, "use_priority": True}
    buffer = {"agent": {"alpha": 0.7, "beta": 0.5, "max_reuse": 9}}
    dqn = nervex("dqn_vanilla", "cartpole", policy=part, replay_buffer=buffer)
    assert values(dqn, "policy.type", "policy.double", "policy.huber") == ["dqn", False, False]
    keys = ("policy.prioritized", "policy.alpha", "policy.beta", "collect.buffer_size")
    assert values(dqn, *keys) == [True, 0.7, 0.5, 9_000]
    assert values(dqn, "policy.model.hidden") == [[128, 128, 48]]


def test_images_keep_their_encoder():
    part = {"model": {"obs_dim": [4, 84, 84], "embedding_dim": 512}}
    pong = nervex("dqn", "atari", env={"env_id": "PongNoFrameskip-v4"}, policy=part)
    assert values(pong, "env.id", "reward.clip", "policy.model.hidden") == [
        "ALE/Pong-v5", (-1.0, 1.0), [64, 64],
    ]  # fmt: skip


def test_hindsight_is_a_reward():
    algo = {"use_her": True, "her_strategy": "final", "her_replay_k": 3}
    her = nervex("dqn", "bitflip", env={"n_bits": 6}, policy={"collect": {"algo": algo}})
    assert values(her, "env.kwargs", "reward.terms") == [
        {"n_bits": 6},
        {"her": {"type": "her", "weight": 1.0, "strategy": "final", "ratio": 0.75,
                 "reward_function": None}},
    ]  # fmt: skip


# --- DI-engine


def test_ppo_of_di_engine():
    learn = {
        "epoch_per_collect": 4, "batch_size": 32, "learning_rate": 0.001, "value_weight": 0.4,
        "entropy_weight": 0.01, "clip_ratio": 0.15, "adv_norm": False, "value_norm": True,
        "grad_clip_type": "clip_norm", "grad_clip_value": 0.7,
        "lr_scheduler": {"epoch_num": 9, "min_lr_lambda": 0},
    }  # fmt: skip
    part = {
        "recompute_adv": True,
        "action_space": "continuous",
        "learn": learn,
        "collect": {"n_sample": 128, "unroll_len": 1, "discount_factor": 0.95, "gae_lambda": 0.9},
        "eval": {"evaluator": {"eval_freq": 40}},
    }
    ppo = di_engine("ppo", policy=part)
    keys = ("collect.n_step", "learn.repeat", "eval.every", "run.device", "run.name")
    # 128 steps have 4 x 4 updates: 40 updates are 320 steps.
    assert values(ppo, *keys) == [128, 4, 320, "auto", "mine"]
    keys = ("normalize_advantage", "max_grad_norm", "anneal", "clip_range", "gae_lambda")
    assert values(ppo, *[f"policy.{key}" for key in keys]) == [False, 0.7, True, 0.15, 0.9]
    assert values(ppo, "reward.normalize", "policy.model.normalize_obs") == [True, False]
    part["learn"] = {"update_per_collect": 8, "batch_size": 32}
    assert values(di_engine("ppo_offpolicy", policy=part), "learn.repeat") == [2]


def test_sac_and_td3_of_di_engine():
    learn = {"update_per_collect": 1, "auto_alpha": False, "alpha": 0.2, "target_theta": 0.01}
    learn |= {"learning_rate_q": 0.003, "learning_rate_policy": 0.003, "batch_size": 64}
    part = {
        "random_collect_size": 700,
        "model": {"twin_critic": True, "actor_head_hidden_size": 96},
        "learn": learn,
        "collect": {"n_sample": 4},
    }
    sac = di_engine("sac", policy=part)
    keys = ("policy.temperature", "policy.tau", "policy.learning_rate", "policy.model.hidden")
    assert values(sac, *keys) == [0.2, 0.01, 0.003, [96, 96]]
    assert values(sac, "collect.warmup_steps", "learn.updates_per_collect") == [700, 1]
    discrete = di_engine("discrete_sac", "cartpole", policy=part)
    assert values(discrete, "policy.type", "env.id") == ["sac", "CartPole-v1"]
    part["learn"] = {"noise": False, "noise_sigma": 0.1, "noise_range": {"min": -0.4, "max": 0.4}}
    assert values(di_engine("td3", policy=part), "policy.target_noise") == [0.0]
    part["model"] = {"twin_critic": False}
    assert values(di_engine("ddpg", policy=part), "policy.type") == ["ddpg"]


def test_a_pair_is_one_config():
    main = {"env": {"stop_value": 9}, "policy": {"collect": {"n_sample": 96}}}
    create = {"env": {"type": "cartpole"}, "policy": {"type": "ppo"}}
    keys = ("env.id", "eval.target_return", "collect.n_step")
    assert values((main, create), *keys) == ["CartPole-v1", 9, 96]


def test_environments_of_older_gym():
    for given, ours in (
        ("Hopper-v3", "Hopper-v5"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("QbertNoFrameskip-v4", "ALE/Qbert-v5"),
        ("CartPole-v0", "CartPole-v0"),
    ):
        assert values(di_engine("ppo", "some_type", env={"env_id": given}), "env.id") == [ours]
    lander = di_engine("sac", "lunarlander", env={"env_id": "LunarLander-v2", "continuous": True})
    assert values(lander, "env.kwargs") == [{"continuous": True}]
    swing = di_engine("dqn", "pendulum", env={"continuous": False})
    assert values(swing, "env.wrappers") == [["guerdon.compat.nervex.envs:eleven_actions"]]


def test_rewards_of_di_engine():
    icm = {"type": "icm", "intrinsic_reward_weight": 0.1, "obs_shape": 4, "hidden_size_list": [8]}
    add = di_engine("ppo", "cartpole", reward_model={**icm, "intrinsic_reward_type": "add"})
    terms = compose(add).reward.terms
    assert (terms["icm"]["weight"], terms["icm"]["hidden_size"]) == (0.1, [8])
    assert terms["env"]["weight"] == 1.0
    alone = di_engine("ppo", "cartpole", reward_model={**icm, "intrinsic_reward_type": "assign"})
    assert [*compose(alone).reward.terms] == ["icm"]
    gail = di_engine("sac", reward_model={"collect_count": 9, "data_path": "here", "input_size": 4})
    assert compose(gail).reward.terms["gail"]["expert_data_path"] == "here/expert_data.pkl"


def test_red_has_the_documented_default_values():
    terms = compose(di_engine("sac", reward_model={"type": "red", "batch_size": 32})).reward.terms
    documented = {"expert_data_path": "expert_data.pkl", "sample_size": 1000, "sigma": 5,
                  "batch_size": 32, "hidden_size": 128, "update_per_collect": 100}  # fmt: skip
    assert {name: terms["red"][name] for name in documented} == documented
    assert compose("cartpole_dqn_red").reward.terms["red"]["sigma"] is None  # guerdon's own


# --- what is not there


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (nervex("rainbow_dqn"), "guerdon has no policy 'rainbow_dqn': choose with policy=NAME"),
        (di_engine("qmix", "smac"), "guerdon has no policy 'qmix' and no environment 'smac': "),
        (di_engine("ppo", "smac"), "guerdon has no environment 'smac': choose"),
        (di_engine("sac", world_model={"type": "mbpo"}), "guerdon has no world model 'mbpo'"),
        (di_engine("dqn_command"), "this config is in the layout of the parallel mode"),
        ({"coordinator": {}, "learner0": {}}, "this config is in the layout"),
    ],
)
def test_what_guerdon_lacks_is_refused_in_one_sentence(source, message):
    with pytest.raises(ConfigError) as error:
        compose(source)
    assert str(error.value).startswith(message)


def test_what_is_chosen_instead_is_not_missed():
    config = compose(di_engine("qmix", "smac"), ["policy=dqn", "env=cartpole"])
    assert (config.policy["type"], config.env.id) == ("dqn", "CartPole-v1")


def test_several_agents_and_gpus_are_said_to_be_missing():
    report = Report()
    part = {"multi_agent": True, "multi_gpu": True, "other": {"league": {"player": 1}}}
    compose(di_engine("ppo", policy=part), report=report)
    absent = "several agents and leagues are not there yet"
    assert {*report.reasons()[absent]} == {"policy.multi_agent", "policy.other.league.player"}
    assert "policy.multi_gpu" in report.dropped


def test_weights_of_a_run_can_be_started_from(tmp_path):
    assert values(nervex("ppo", learner={"load_path": str(tmp_path)}), "policy.init_from") == [
        str(tmp_path)
    ]
    report = Report()
    config = compose(nervex("ppo", learner={"load_path": "their.pth.tar"}), report=report)
    assert config.policy["init_from"] is None
    assert "policy.init_from=RUN" in report.dropped["learner.load_path"]


def test_guerdons_own_key_that_nothing_reads_is_an_error():
    with pytest.raises(ConfigError, match="but dqn does not read it"):
        compose(nervex("dqn", learn={"repeat": 3}))


def test_without_a_stop_value_the_run_has_guerdons_length():
    endless = nervex("ppo")
    assert values(endless, "run.max_steps", "run.checkpoint_every") == [10_000_000, 100_000]
    del endless["evaluator"]["stop_val"]
    assert values(endless, "run.max_steps") == [100_000]


class Noting(CommonPolicy):
    """Notes how many samples it learns from at once."""

    def _forward_learn(self, data):
        self.sizes = [*getattr(self, "sizes", ()), len(data["action"])]
        return {}


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("of_class", [True, False])
def test_the_config_says_whether_a_class_of_ones_own_is_on_policy(
    on_policy, of_class, registry, tmp_path, monkeypatch
):
    monkeypatch.setattr(Noting, "on_policy", of_class)
    registry.register("noting", Noting)
    config = nervex("noting", policy={"on_policy": on_policy}, learn={"batch_size": 8})
    config |= {"actor": {"n_sample": 32}, "evaluator": {"n_episode": 1}}
    config |= {"run": {"max_steps": 32, "dir": str(tmp_path / "run")}}
    policy = guerdon.train(config).policy
    assert policy.on_policy is on_policy
    # Every transition of the rollout in minibatches, or one batch of the buffer.
    assert sum(policy.sizes) >= 32 if on_policy else policy.sizes == [8] * policy.updates
    assert guerdon.load_policy(tmp_path / "run").on_policy is on_policy
