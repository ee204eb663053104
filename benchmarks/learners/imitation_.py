"""imitation: GAIL as in its tutorial, whose environment is CartPole with a fixed horizon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from imitation.algorithms.adversarial.gail import GAIL
from imitation.data.types import Trajectory
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm
from imitation.util.util import make_vec_env
from stable_baselines3 import PPO

from learners.base import Learner, StopTraining, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

_META = Path(__file__).parents[2] / "guerdon/zoo/demonstrations/cartpole_fixed/meta.json"
_N_ENVS = 8
_STEPS = 800_000


class _Imitation(Learner):
    name = "imitation"
    packages = ("imitation",)
    usage: ClassVar = {
        "gail": "the settings of its tutorial (seals/CartPole-v0, 8 environments, PPO with a "
        "learning rate of 4e-4, 8 updates of 1,024 a round), with guerdon's 10 demonstrations",
    }

    def gail(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        venv = make_vec_env(
            "seals:seals/CartPole-v0", rng=np.random.default_rng(seed), n_envs=_N_ENVS
        )
        learner = PPO(
            "MlpPolicy",
            venv,
            batch_size=64,
            ent_coef=0.0,
            learning_rate=4e-4,
            gamma=0.95,
            n_epochs=5,
            seed=seed,
            device="cpu",
        )
        network = BasicRewardNet(
            venv.observation_space, venv.action_space, normalize_input_layer=RunningNorm
        )
        trainer = GAIL(
            demonstrations=list(demonstrations()),
            demo_batch_size=1024,
            gen_replay_buffer_capacity=512,
            n_disc_updates_per_round=8,
            venv=venv,
            gen_algo=learner,
            reward_net=network,
            custom_logger=logger.configure(format_strs=[]),
        )

        def look(_: int = 0) -> None:
            if watch(
                learner.num_timesteps, lambda obs: learner.predict(obs, deterministic=True)[0]
            ):
                raise StopTraining

        try:
            look()
            trainer.train(_STEPS, callback=look)
        except StopTraining:
            pass
        venv.close()


def demonstrations() -> Iterator[Trajectory]:
    """Those that come with guerdon, as this library wants them; none of them ends early."""
    lengths = [episode["length"] for episode in json.loads(_META.read_text())["episodes"]]
    with np.load(_META.with_name("shard_000000.npz")) as file:
        names = {
            leaf["path"][0]: leaf["entry"] for leaf in json.loads(bytes(file["meta"]))["leaves"]
        }
        obs, acts = file[names["obs"]], file[names["act"]]
    for length in lengths:
        yield Trajectory(obs[: length + 1], acts[:length], infos=None, terminal=True)
        obs, acts = obs[length + 1 :], acts[length:]


LEARNER = _Imitation()
