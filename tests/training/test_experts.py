"""Demonstrations of policies: what was played, who made it, and where it is kept."""

import shutil
import threading

import numpy as np
import pytest
import torch
import yaml

from guerdon.config import compose
from guerdon.config.errors import ConfigError
from guerdon.data import load_demonstrations, save_demonstrations
from guerdon.data.demonstrations import KEYS
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.training import experts
from guerdon.training import run as run_module
from guerdon.training.checkpoints import checkpoint_steps
from guerdon.training.experts import Expert, expert_folder, make_experts, with_experts
from guerdon.training.parts import make_parts
from guerdon.training.replay import collect_demonstrations, collect_run
from guerdon.training.run import train
from tests.collect.acting import Tracing, action_for, backend_vector, modes_vector
from tests.envs.walking import Pattern
from tests.training.running import config_of

PATTERNS = [Pattern((3, 5)), Pattern((4,), (True,))]


# --- playing


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "base"])
def test_whole_episodes_are_kept_as_they_were_played(mode):
    env = backend_vector(mode, PATTERNS) if mode == "base" else modes_vector(mode, PATTERNS)
    told = []
    played = collect_demonstrations(
        Tracing(env), env, 5, progress=lambda *numbers: told.append(numbers)
    )
    assert played.lengths.tolist() == [3, 5, 3, 4, 4]
    assert played.returns.tolist() == [6, 15, 6, 10, 10]  # each step pays its number
    for episode in played.episodes:
        np.testing.assert_array_equal(episode.act, action_for(episode.obs))
        np.testing.assert_array_equal(episode.obs_next[:-1], episode.obs[1:])
        assert episode.rew[0] == 1
        assert set(episode.keys()) == set(KEYS)
    assert [bool(e.truncated[-1]) for e in played.episodes] == [False, True, False, True, True]
    assert played.observation_space == env.observation_space
    assert played.action_space == env.action_space
    assert told[-1] == (5, 5)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def made(env_id="guerdon/Identity-v0", name="ppo"):
    env = make_vec(env_id, 3)
    config = {"type": name, "model": {"hidden": [8]}}
    return create_policy(config, env.observation_space, env.action_space, seed=1), env


@pytest.mark.parametrize("env_id", ["guerdon/Identity-v0", "guerdon/Target-v0", "CartPole-v1"])
def test_the_same_seed_gives_the_same_demonstrations(env_id):
    policy, env = made(env_id)
    one, two, other = (
        collect_demonstrations(policy, env, 4, seed=seed, noise=0.3, deterministic=False)
        for seed in (5, 5, 6)
    )
    for first, second in zip(one.episodes, two.episodes, strict=True):
        assert first == second
    assert any(a != b for a, b in zip(one.episodes, other.episodes, strict=True))


def test_noise_replaces_so_many_actions_and_is_written_down():
    env = backend_vector("base", [Pattern((500,))] * 2)
    played = collect_demonstrations(Tracing(env), env, 4, seed=1, noise=0.4)
    rows = played.transitions()
    assert (rows.noise == np.float32(0.4)).all()
    # One of four random actions is the right one all the same.
    assert np.mean(rows.act != action_for(rows.obs)) == pytest.approx(0.4 * 0.75, abs=0.03)
    quiet = collect_demonstrations(Tracing(env), env, 1, noise=0.0).transitions()
    np.testing.assert_array_equal(quiet.act, action_for(quiet.obs))
    assert (quiet.noise == 0).all()
    loud = collect_demonstrations(Tracing(env), env, 2, noise=1.0).transitions()
    assert np.mean(loud.act != action_for(loud.obs)) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(
    ("number", "noise", "message"), [(0, None, "one episode or more"), (1, 1.5, "0 to 1, not 1.5")]
)
def test_what_cannot_be_played_is_refused(number, noise, message):
    policy, env = made()
    with pytest.raises(ValueError, match=message):
        collect_demonstrations(policy, env, number, noise=noise)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts") / "run"
    train(config_of("ppo", folder, run={"max_steps": 64}), seed=0, display="none")
    return folder


def test_a_run_plays_with_every_level_of_noise(finished):
    told = []
    played = collect_run(
        finished, 3, noise=(0.0, 1.0), seed=2, progress=lambda *numbers: told.append(numbers)
    )
    assert [float(episode.noise[0]) for episode in played.episodes] == [0.0] * 3 + [1.0] * 3
    assert played.env_id == "guerdon/Identity-v0"
    assert told[-1] == (6, 6)
    alone = collect_run(finished, 3, seed=2)
    np.testing.assert_array_equal(alone.transitions().act, played.transitions().act[:30])


def test_a_run_plays_with_several_checkpoints_in_their_order(finished):
    first, *_, last = checkpoint_steps(finished / "checkpoints")
    told = []
    played = collect_run(
        finished, 2, checkpoint=[last, first, "latest"], noise=(0.0, 1.0), seed=2,
        progress=lambda *numbers: told.append(numbers),
    )  # fmt: skip
    assert told[-1] == (12, 12)
    assert [float(each.noise[0]) for each in played.episodes] == [0, 0, 1, 1] * 3
    for number, checkpoint in enumerate((last, first, last)):
        alone = collect_run(finished, 2, checkpoint=checkpoint, noise=(0.0,), seed=2 + 2 * number)
        found = played.episodes[4 * number : 4 * number + 2]
        for one, other in zip(alone.episodes, found, strict=True):
            np.testing.assert_array_equal(one.act, other.act)
    with pytest.raises(ValueError, match="one checkpoint or more"):
        collect_run(finished, 2, checkpoint=[])


# --- experts by name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("expert:cartpole_ppo", Expert(preset="cartpole_ppo")),
        ("expert:a/b.yaml?seed=3", Expert(preset="a/b.yaml", seed=3)),
        (
            "expert:cartpole_ppo?episodes=20&return=475.5&noise=0,0.25&most=100&steps=50&seed=1",
            Expert(
                preset="cartpole_ppo",
                episodes=20,
                target_return=475.5,
                noise=(0.0, 0.25),
                most=100.0,
                steps=50,
                seed=1,
            ),
        ),
    ],
)
def test_a_name_says_what_is_wanted(name, expected):
    assert Expert.of(name) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("expert:x?episode=3", "did you mean 'episodes'"),
        ("expert:x?episodes=many", "expert:PRESET.episodes=10.*'episodes' is 'many'"),
        ("expert:x?episodes", "as in expert:PRESET.episodes=10.*'episodes'"),
        ("expert:x?episodes=0", "'episodes' is '0': it should be greater than or equal to 1"),
        ("expert:x?noise=0,2", "'noise.1' is '2': it should be less than or equal to 1"),
        ("expert:x?steps=0", "'steps' is '0'"),
        ("expert:x?steps=-3", "'steps' is '-3'"),
        ("expert:x?most=nan", "'most' is 'nan': it should be a finite number"),
        ("expert:x?return=nan", "'return' is 'nan': it should be a finite number"),
        ("expert:", "'preset' is '': it should have at least 1 character"),
    ],
)
def test_a_name_that_says_something_else_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        Expert.of(name)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "guerdon" / "demonstrations"


@pytest.fixture
def preset(tmp_path):
    config = config_of("ppo", "unused", run={"max_steps": 64})
    config["run"].pop("dir")
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_an_expert_is_made_once(cache, preset, capsys, monkeypatch):
    name = f"expert:{preset}?episodes=4&seed=2"
    folder = expert_folder(name)
    assert folder.parent == cache
    assert folder.name.startswith("tiny-")
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == [
        folder.name
    ]
    shown = capsys.readouterr().out
    assert f"training {preset}, 64 steps at most; this is done once" in shown
    assert "kept 4 episodes with a mean return of" in shown
    assert len(load_demonstrations(folder)) == 4
    monkeypatch.setattr(run_module, "train", None)  # nobody trains again
    assert expert_folder(name) == folder
    assert capsys.readouterr().out == ""


def test_another_wish_is_another_folder(cache, preset):
    text = preset.read_text()
    first = expert_folder(f"expert:{preset}?episodes=1", "none")
    second = expert_folder(f"expert:{preset}?episodes=2&noise=0,1", "none")
    assert len(load_demonstrations(second)) == 4
    preset.write_text(text.replace("max_steps: 64", "max_steps: 96"))
    third = expert_folder(f"expert:{preset}?episodes=1", "none")
    assert len({first, second, third}) == 3
    assert {path for path in cache.iterdir() if path.is_dir()} == {first, second, third}


def test_only_worse_episodes_are_kept_and_only_their_beginning(cache, preset):
    every = load_demonstrations(expert_folder(f"expert:{preset}?episodes=8&noise=0,1", "none"))
    most = float(np.median(every.returns))
    name = f"expert:{preset}?episodes=8&noise=0,1&most={most}&steps=3"
    kept = load_demonstrations(expert_folder(name, "none"))
    assert len(kept) == (every.returns <= most).sum() < len(every)
    assert kept.lengths.max() == 3
    assert kept.returns.max() <= most
    with pytest.raises(RuntimeError, match=r"have a return above -99, the least of them"):
        expert_folder(f"expert:{preset}?most=-99", "none")
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2


def test_nothing_is_shown_where_nothing_shall_be(cache, preset, capsys):
    expert_folder(f"expert:{preset}?episodes=1", "none")
    assert capsys.readouterr().out == ""
    assert cache.is_dir()


def test_an_expert_that_falls_short_leaves_nothing(cache, preset):
    with pytest.raises(RuntimeError, match=r"reached a mean return of .*, and not 11: ask for"):
        expert_folder(f"expert:{preset}?return=11", "none")  # 10 is the best there is
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_whoever_interrupts_the_training_of_an_expert_stops_all(cache, preset, monkeypatch):
    monkeypatch.setattr(run_module, "train", lambda *_, **__: {"stop_reason": "interrupted"})
    with pytest.raises(KeyboardInterrupt):
        expert_folder(f"expert:{preset}", "none")
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_training_stops_at_the_return_that_is_asked_for(preset):
    assert Expert.of(f"expert:{preset}?return=-1").config().eval.target_return == -1


def test_what_a_killed_process_left_is_cleared_away(cache, preset, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    name = f"expert:{preset}?episodes=1"
    with monkeypatch.context() as patch:
        patch.setattr(experts, "collect_run", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            expert_folder(name, "none")
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1
    folder = expert_folder(name, "none")
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]


def test_whoever_comes_too_late_takes_what_is_there(cache, preset):
    found = []
    workers = [
        threading.Thread(
            target=lambda: found.append(expert_folder(f"expert:{preset}?episodes=1", "none"))
        )
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found[0] == found[1]
    assert [path for path in cache.iterdir() if path.is_dir()] == [found[0]]


def test_names_are_found_wherever_options_hold_them(monkeypatch):
    monkeypatch.setattr(experts, "expert_folder", lambda name, _: f"made {name}")
    options = {"a": {"expert_data_path": "expert:x", "b": ["expert:y", "zoo:z", 3]}, "c": None}
    assert with_experts(options) == {
        "a": {"expert_data_path": "made expert:x", "b": ["made expert:y", "zoo:z", 3]},
        "c": None,
    }


def test_a_reward_learns_from_an_expert_that_its_config_names(cache, preset):
    reward = {"type": "gail", "expert_data_path": f"expert:{preset}?episodes=2"}
    config = compose(config_of("ppo", "unused", reward=reward))
    parts = make_parts(make_experts(config, "none"))
    (model,) = parts.reward.models
    assert len(model.expert["act"]) == 20
    assert model.config.expert_data_path.startswith(str(cache))
    assert config.reward.terms["gail"]["expert_data_path"].startswith("expert:")


@pytest.mark.parametrize("kind", ["sqil", "gail"])
def test_a_frozen_reward_has_the_demonstrations_that_it_goes_on_reading(
    kind, cache, preset, tmp_path
):
    reward = {"type": kind, "expert_data_path": f"expert:{preset}?episodes=2"}
    case = "sac_discrete"
    train(config_of(case, tmp_path / "one", reward=reward, run={"max_steps": 64}), display="none")
    folders = [path for path in cache.iterdir() if path.is_dir()]
    for folder in folders:
        shutil.rmtree(folder)
    config = config_of(case, tmp_path / "two", run={"max_steps": 64})
    train(config, from_reward=tmp_path / "one", display="none")
    found = [path for path in cache.iterdir() if path.is_dir()]
    assert found == (folders if kind == "sqil" else [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": {"device": "mps" if torch.cuda.is_available() else "cuda:9"}}, "no such device"),
        (
            {"reward": {"checkpoint_path": "nowhere", "cotrain": True}},
            "nowhere has no reward",
        ),
        ({"policy": {"intrinsic": {"terms": ["rnd"]}}}, "names .rnd., which the reward has not"),
    ],
)
def test_an_expert_is_not_made_for_a_config_that_cannot_run(
    changes, message, preset, tmp_path, monkeypatch
):
    terms = {"gail": {"expert_data_path": f"expert:{preset}"}}
    config = config_of("ppo", tmp_path / "run", reward={"terms": terms})
    for section, options in changes.items():
        config[section] = config[section] | options
    made = []
    monkeypatch.setattr(experts, "expert_folder", lambda *_: made.append(1))
    with pytest.raises((ValueError, OSError), match=message):
        train(config, display="none")
    assert made == []


def test_an_expert_is_none_for_those_who_only_read():
    with pytest.raises(ValueError, match="made by training"):
        load_demonstrations("expert:cartpole_ppo")


def test_demonstrations_of_other_spaces_are_refused_before_training(finished, tmp_path):
    save_demonstrations(collect_run(finished, 1), tmp_path / "data")
    reward = {"type": "gail", "expert_data_path": str(tmp_path / "data")}
    with pytest.raises(ValueError, match=r"'gail' cannot learn from .*data: .* shape \(1,\)"):
        train(config_of("sac", tmp_path / "run", reward=reward), display="none")
    assert not (tmp_path / "run").exists()
