"""A reward on its own: saved with a run, loaded into another, trained before the policy acts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from guerdon.compat.di_engine import BaseRewardModel
from guerdon.config import ConfigError, compose
from guerdon.data import save_demonstrations
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.reward import RewardModel, register_reward_model
from guerdon.training import run as run_module
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.parts import make_parts
from guerdon.training.replay import collect_demonstrations
from guerdon.training.reward_files import restore_reward, sections_of, with_reward_of
from guerdon.training.run import train
from tests.training.running import (
    HALF,
    WHOLE,
    Idle,
    assert_same_run,
    config_of,
    leaves,
    metrics_of,
    resume,
    run,
    same,
)


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Of a policy that knows nothing, but in the spaces of the environment."""
    folder = tmp_path_factory.mktemp("demonstrations")
    for env_id in ("guerdon/Identity-v0", "CartPole-v1"):
        env = make_vec(env_id, 2)
        policy = create_policy({"type": "ppo"}, env.observation_space, env.action_space)
        save_demonstrations(collect_demonstrations(policy, env, 4), folder / env_id.split("/")[-1])
    return folder


@pytest.fixture(scope="module")
def gail(demonstrations):
    small = {"hidden_size": 8, "batch_size": 16, "update_per_collect": 2}
    return {"type": "gail", "expert_data_path": str(demonstrations / "Identity-v0"), **small}


@pytest.fixture(scope="module")
def learned(gail, tmp_path_factory):
    """A run that has learned a reward."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    run("ppo", folder, reward=gail, run={"max_steps": 64})
    return folder


def reward_of(folder):
    return leaves(load_checkpoint(folder / "reward")[0]["state"])


def reward_in_checkpoint(folder):
    state, _ = load_checkpoint(folder / "checkpoints", parts=("reward",))
    return leaves(state["reward"])


# --- what a run leaves


def test_a_run_leaves_its_reward_as_it_is_and_one_alone(learned):
    (step,) = checkpoint_steps(learned / "reward")
    assert step == checkpoint_steps(learned / "checkpoints")[-1]
    saved, whole = reward_of(learned), reward_in_checkpoint(learned)
    networks = [path for path in whole if "/network/" in path or "/optimizers/" in path]
    assert len(networks) > 4
    assert all(same(saved[path], whole[path]) for path in networks)


def test_what_only_the_run_can_use_is_left_out(gail, tmp_path):
    reward = gail | {"clear_buffer_per_iters": 1_000}
    run("sac_discrete", tmp_path / "run", reward=reward, run={"max_steps": 64})
    assert reward_in_checkpoint(tmp_path / "run")["/terms/gail/memory/written"] > 0
    assert reward_of(tmp_path / "run")["/terms/gail/memory/written"] == 0
    assert not any("memory/rows/" in path for path in reward_of(tmp_path / "run"))


def test_who_begins_with_answers_of_another_run_asks_questions_of_its_own(tmp_path):
    reward = {"type": "preference", "comparisons": 12, "rounds": 1, "segment_length": 5,
              "train_every": 32, "hidden_size": 4, "update_per_collect": 1}  # fmt: skip
    run("ppo", tmp_path / "one", reward=reward, run={"max_steps": 256})
    reward |= {"checkpoint_path": str(tmp_path / "one"), "cotrain": True}
    run("ppo", tmp_path / "next", reward=reward, run={"max_steps": 256})
    asked = [
        load_checkpoint(tmp_path / name / "checkpoints", parts=("reward",))[0]["reward"]
        for name in ("one", "next")
    ]
    terms = [state["terms"]["preference"] for state in asked]
    assert [(term["asked"], term["round"]) for term in terms] == [(12, 2), (12, 2)]
    known = [
        line["reward/preference/comparisons"]
        for name in ("one", "next")
        for line in metrics_of(tmp_path / name)
        if "reward/preference/comparisons" in line
    ]
    assert max(known) == 24  # its own, and those of the other


def test_what_members_of_an_ensemble_remember_is_left_out_too(gail, tmp_path):
    of = gail | {"clear_buffer_per_iters": 1_000, "train_every": 1}
    reward = {"type": "ensemble", "of": of, "members": 2}
    run("sac_discrete", tmp_path / "run", reward=reward, run={"max_steps": 64})
    whole, saved = reward_in_checkpoint(tmp_path / "run"), reward_of(tmp_path / "run")
    for number in range(2):
        member = f"/terms/ensemble/members/{number}"
        assert whole[f"{member}/memory/written"] > 0
        assert saved[f"{member}/memory/written"] == 0
        assert saved[f"{member}/trained"] == whole[f"{member}/trained"] > 0
    assert not any("memory/rows/" in path for path in saved)
    reward["checkpoint_path"] = str(tmp_path / "run")
    run("sac_discrete", tmp_path / "next", reward=reward, run={"max_steps": 48})


def test_the_environments_own_reward_is_not_written(tmp_path):
    run("ppo_normalized", tmp_path / "run", run={"max_steps": 32})
    assert list((tmp_path / "run" / "reward").iterdir()) == []
    with pytest.raises(FileNotFoundError, match="run has no reward: give a run that has learned"):
        run("ppo", tmp_path / "next", reward={"checkpoint_path": str(tmp_path / "run")})


# --- beginning with the reward of another run


@pytest.mark.parametrize("part", ["", "reward"])
def test_a_reward_begins_as_another_run_left_it_and_stays_so(learned, gail, part, tmp_path):
    reward = gail | {"checkpoint_path": str(learned / part)}
    run("ppo", tmp_path / "run", reward=reward, run={"max_steps": 64})
    config = compose(tmp_path / "run")
    assert config.reward.cotrain is False
    saved, before = reward_of(tmp_path / "run"), reward_of(learned)
    assert saved.keys() == before.keys()
    assert all(same(saved[path], before[path]) for path in before)
    lines = metrics_of(tmp_path / "run")
    assert not any("reward/gail/loss" in line for line in lines)
    assert all("reward/mean" in line for line in lines)
    assert any("reward/eval_return" in line for line in lines)


def test_it_is_trained_on_if_the_config_says_so(learned, gail, tmp_path):
    reward = gail | {"checkpoint_path": str(learned), "cotrain": True}
    run("ppo", tmp_path / "run", reward=reward, run={"max_steps": 32})
    trained = "/terms/gail/trained"
    assert reward_of(tmp_path / "run")[trained] == reward_of(learned)[trained] + 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "airl"}, r"is made of gail, but this run's of airl: take that run's reward"),
        ({"hidden_size": 9}, r"does not fit this run's \(.*Discriminator: size mismatch"),
        ({"normalize": True}, r"does not fit this run's \('scaler'\)"),
    ],
)
def test_a_reward_that_does_not_fit_is_refused_before_anything_is_written(
    learned, gail, changes, message, tmp_path
):
    reward = gail | {"checkpoint_path": str(learned)} | changes
    with pytest.raises(ValueError, match=message):
        run("ppo", tmp_path / "run", reward=reward)
    assert not (tmp_path / "run").exists()


def test_a_reward_of_other_spaces_is_refused_before_anything_is_written(demonstrations, tmp_path):
    path = str(demonstrations / "Identity-v0")
    reward = {"type": "pwil", "expert_data_path": path, "horizon": 10}
    run("ppo", tmp_path / "one", reward=reward, run={"max_steps": 32})
    config = config_of("ppo", tmp_path / "two")
    config["env"]["id"] = "CartPole-v1"
    with pytest.raises(
        ValueError, match=r"does not fit this run's \(size mismatch of pwil.*spaces"
    ):
        train(config, from_reward=tmp_path / "one", display="none")
    assert not (tmp_path / "two").exists()


def test_a_term_of_another_kind_does_not_fit_by_its_name(learned, gail):
    reward = {"terms": {"gail": gail | {"type": "fairl"}}, "checkpoint_path": str(learned)}
    config = compose(config_of("ppo", "unused", reward=reward))
    with pytest.raises(ValueError, match=r"is made of gail, but this run's of gail \(fairl\)"):
        restore_reward(make_parts(config).reward, config.reward)


# --- a fresh policy on a run's reward


def test_a_fresh_policy_learns_from_the_reward_of_a_run(learned, tmp_path):
    config = config_of("dqn_prioritized_3_step", tmp_path / "run", run={"max_steps": 64})
    config["env"] = {"id": "guerdon/Identity-v0", "n_envs": 2}
    before = json.dumps(config)
    train(config, "reward.scale=0.5", from_reward=learned, display="none")
    assert json.dumps(config) == before
    made = compose(tmp_path / "run").reward
    assert made.terms == compose(learned).reward.terms
    assert (made.checkpoint_path, made.cotrain, made.scale) == (str(learned), False, 0.5)
    saved, kept = reward_of(tmp_path / "run"), reward_of(learned)
    assert all(same(saved[path], kept[path]) for path in kept)


def test_a_preset_keeps_all_but_its_reward(learned):
    preset, changes = "cartpole_ppo", ["seed=3"]
    config = compose(with_reward_of(sections_of(preset), preset, changes, learned), changes)
    assert config.reward.terms == compose(learned).reward.terms
    assert config.run.name == "cartpole_ppo_gail"
    assert config.policy == compose("cartpole_ppo").policy
    assert config.collect == compose("cartpole_ppo").collect


def test_a_config_file_and_overrides_alone_will_do_too(learned, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config_of("ppo", "unused") | {"imports": ["math"]}))
    values = with_reward_of(sections_of(file), None, [], learned)
    assert values["imports"] == ["math"]
    assert compose(values).reward.checkpoint_path == str(learned)
    overrides = ["env=cartpole", "policy=dqn"]
    config = compose(with_reward_of({}, None, overrides, learned), overrides)
    assert (config.policy["type"], list(config.reward.terms)) == ("dqn", ["gail"])
    assert (
        compose(with_reward_of(compose(file).model_dump(), None, [], learned)).policy["type"]
        == "ppo"
    )


@pytest.mark.parametrize(
    ("source", "override", "error", "message"),
    [
        ("cartpole_ppo", "reward=gail", ValueError, "leave 'reward=gail' out"),
        ("cartpol_ppo", "seed=1", ConfigError, "did you mean 'cartpole_ppo'"),
    ],
)
def test_contradictions_are_refused(learned, source, override, error, message):
    with pytest.raises(error, match=message):
        train(source, override, from_reward=learned)


def test_a_run_is_resumed_with_its_own_reward(learned, tmp_path):
    with pytest.raises(ValueError, match="resumed with its own reward"):
        train(resume=learned, from_reward=learned)
    with pytest.raises(ValueError, match=r"reward\.checkpoint_path of a run cannot change"):
        resume(learned, f"reward.checkpoint_path={tmp_path}")


# --- going on exactly


@pytest.mark.parametrize("case", ["ppo", "sac_discrete"])
def test_a_run_that_learns_its_reward_is_resumed_exactly(case, gail, tmp_path):
    reward = gail | {"train_every": 11}
    run(case, tmp_path / "whole", reward=reward)
    run(case, tmp_path / "run", reward=reward, run={"max_steps": HALF})
    resume(tmp_path / "run", f"run.max_steps={WHOLE}")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    one, other = (reward_of(tmp_path / name) for name in ("whole", "run"))
    assert one.keys() == other.keys()
    assert all(same(one[path], other[path]) for path in one)


def test_a_run_that_began_with_a_reward_goes_on_without_it(learned, gail, tmp_path):
    reward = gail | {"checkpoint_path": str(tmp_path / "gone"), "cotrain": True}
    (tmp_path / "gone").symlink_to(learned)
    run("ppo", tmp_path / "whole", reward=reward)
    run("ppo", tmp_path / "run", reward=reward, run={"max_steps": HALF})
    (tmp_path / "gone").unlink()
    resume(tmp_path / "run", f"run.max_steps={WHOLE}")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def run_until_its_first_checkpoint(folder, reward):
    """A run that ends just before it saves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "save_checkpoint", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("ppo", folder, reward=reward, run={"max_steps": 64})


def test_a_run_killed_before_its_first_checkpoint_begins_with_the_reward_again(
    learned, gail, tmp_path
):
    reward = gail | {"checkpoint_path": str(learned)}
    run("ppo", tmp_path / "whole", reward=reward, run={"max_steps": 64})
    run_until_its_first_checkpoint(tmp_path / "run", reward)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


# --- pretraining


class Ready(RewardModel):
    """Pays as often as it was trained before the policy acted."""

    can_pretrain = True

    def __init__(self, config, setting):
        super().__init__(config, setting)
        self.rounds = 0

    def pretrain(self):
        self.rounds += 1
        return {"rounds": self.rounds}

    def score(self, data):  # noqa: ARG002
        return float(self.rounds)

    def training_state(self):
        return {"rounds": self.rounds}

    def load_training_state(self, state):
        self.rounds = state["rounds"]


register_reward_model("test_ready", Ready)
PRETRAINED = {"type": "test_ready", "pretrain": True}


def test_a_reward_is_trained_before_the_policy_acts_and_once(tmp_path):
    run("ppo", tmp_path / "run", reward=PRETRAINED, run={"max_steps": HALF})
    resume(tmp_path / "run", f"run.max_steps={WHOLE}")
    first, *others = metrics_of(tmp_path / "run")
    assert first == {"step": 0, "reward/test_ready/rounds": 1}
    assert not any("reward/test_ready/rounds" in line for line in others)
    assert {line["reward/mean"] for line in others if "reward/mean" in line} == {1.0}
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("training the reward before the policy acts") == 1
    assert log.count("trained the reward in") == 1
    run("ppo", tmp_path / "whole", reward=PRETRAINED)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_run_killed_before_its_first_checkpoint_is_pretrained_again(tmp_path):
    run("ppo", tmp_path / "whole", reward=PRETRAINED, run={"max_steps": 64})
    run_until_its_first_checkpoint(tmp_path / "run", PRETRAINED)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_reward_that_cannot_be_pretrained_says_so(tmp_path):
    reward = {"terms": {"constant": {}, "env": {}}, "pretrain": True}
    with pytest.raises(ValueError, match="nothing in constant, env can be trained before"):
        run("ppo", tmp_path / "run", reward=reward)
    assert not (tmp_path / "run").exists()


def test_a_pretraining_that_does_nothing_is_told(tmp_path):
    register_reward_model("test_idle", Idle)
    reward = {"type": "test_idle", "pretrain": True}
    run("ppo", tmp_path / "run", reward=reward, run={"max_steps": 32})
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "'reward.pretrain' changed nothing" in log
    assert "trained the reward in" not in log


# --- a model of the guide's style


class Guided(BaseRewardModel):
    """Draws, learns and keeps data, and says nothing about its state."""

    def __init__(self, config, device, tb_logger):
        super().__init__(config, device, tb_logger)
        self.reward_model = torch.nn.Linear(config.size, 1)
        self.optimizer = torch.optim.Adam(self.reward_model.parameters())
        self.train_data = []
        self.train_iter = 0

    def collect_data(self, data):
        self.train_data.extend(data)

    def clear_data(self, iter):  # noqa: A002
        if iter % self.cfg.clear_buffer_per_iters == 0:
            self.train_data.clear()

    def train(self):
        chosen = torch.randint(len(self.train_data), (8,)).tolist()
        obs = torch.stack([self.train_data[i]["obs"] for i in chosen])
        loss = (self.reward_model(obs) - torch.rand(8, 1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.train_iter += 1
        self.tb_logger.add_scalar("reward_model/reward_loss", loss, self.train_iter)

    def estimate(self, data):
        for item in data:
            item["reward"] = self.reward_model(item["obs"])
        return data


register_reward_model("test_resumed", Guided)


@pytest.mark.parametrize("case", ["ppo", "dqn_prioritized_3_step"])
def test_a_model_of_the_guides_style_is_resumed_exactly(case, tmp_path):
    size = 4
    reward = {"type": "test_resumed", "size": size, "clear_buffer_per_iters": 5}
    run(case, tmp_path / "whole", reward=reward)
    run(case, tmp_path / "run", reward=reward, run={"max_steps": HALF})
    resume(tmp_path / "run", f"run.max_steps={WHOLE}")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    lines = metrics_of(tmp_path / "run")
    assert np.isfinite([line["reward/test_resumed/reward_loss"] for line in lines]).all()
    config = config_of(case, tmp_path / "next", run={"max_steps": 48})
    train(config, from_reward=Path(tmp_path / "run"), display="none")
    saved, kept = reward_of(tmp_path / "next"), reward_of(tmp_path / "run")
    networks = [path for path in kept if "reward_model" in path]
    assert networks
    assert all(same(saved[path], kept[path]) for path in networks)
