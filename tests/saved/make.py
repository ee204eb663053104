"""Write a file of every kind, as this version does: `python tests/saved/make.py FOLDER`."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import guerdon
from guerdon.data import (
    Batch,
    Demonstrations,
    Preference,
    ReplayBuffer,
    load_demonstrations,
    save_demonstrations,
    save_preferences,
)
from guerdon.data.frames import Trajectory, write_trajectory

SMALL = {"hidden": [4]}


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    buffer = ReplayBuffer(8, n_envs=2, seed=0)
    for i in range(3):
        rows = {"obs": np.arange(2.0) + i, "obs_next": np.arange(2.0) + i + 1, "act": np.arange(2)}
        buffer.add(rows, rew=np.full(2, i / 2), done=np.array([i == 1, False]))
    buffer.save(folder / "buffer")
    given = load_demonstrations("zoo:cartpole_fixed")
    episode = given.episodes[0][:5]
    spaces = given.observation_space, given.action_space
    save_demonstrations(Demonstrations([episode], given.env_id, *spaces), folder / "demonstrations")
    save_preferences(
        folder / "preferences.jsonl",
        [Preference("a", episode[:2], episode[2:4], 1.0, "me", "2026-01-01T00:00:00+00:00")],
    )
    images = {"base_camera": np.full((2, 3, 4, 4), 7, np.uint8)}
    write_trajectory(folder / "trajectories", Trajectory(images, np.float32([0, 1]), True))
    run = guerdon.train(
        "cartpole_fixed_ppo_gail", policy={"model": SMALL}, reward={"hidden_size": [4]},
        collect={"n_step": 64}, learn={"batch_size": 64, "repeat": 1}, env={"n_envs": 2},
        eval={"episodes": 2, "every": 64}, display="none",
        run={"max_steps": 64, "dir": str(folder / "run")},
    )  # fmt: skip
    shutil.rmtree(folder / "run" / "tb")
    for name in ("run.json", ".lock"):  # which name this machine
        (folder / "run" / name).unlink()
    transitions = Batch(episode)
    expected = {
        "action": run.policy.predict(episode.obs).tolist(),
        "rewards": run.reward.score(transitions).tolist(),
    }
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
