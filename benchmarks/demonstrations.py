"""Write demonstrations that come with guerdon: of LunarLander, and of bad policies of Pendulum.

`lunarlander`: the first 10 episodes of a rule with a return of 200 or more (a landing), and
`lunarlander_random`: 30 of random actions. `pendulum_early`: four episodes of each of six policies
of ppo, after 8,192 to 49,152 steps, to be ranked; `pendulum_novice`: ten episodes after 57,344
steps. It needs the extra box2d. Those of other tasks are of trained policies: `guerdon collect`.

    python benchmarks/demonstrations.py
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import guerdon
from guerdon.data import Batch, Demonstrations, save_demonstrations
from guerdon.data.loading import ZOO
from guerdon.envs import make_vec
from guerdon.envs.experts import land
from guerdon.policy import Policy
from guerdon.training.replay import collect_demonstrations, collect_run

LANDED = 200.0
EARLY = range(8_192, 49_153, 8_192)
NOVICE = 57_344


class Ruled(Policy):
    """Acts by a rule."""

    def forward(self, batch: Batch, _: Any = None) -> Batch:
        """Choose the rule's actions."""
        return Batch(act=land(batch.obs))


def main() -> None:
    """Play and write."""
    for name, played in {**lunarlander(), **pendulum()}.items():
        save_demonstrations(played, ZOO / name, overwrite=True)
        print(f"{name}: {played}, mean return {played.returns.mean():.1f}")


def lunarlander() -> dict[str, Demonstrations]:
    """Play with the rule, and with random actions."""
    env = make_vec("LunarLander-v3", 1)
    policy = Ruled({}, env.observation_space, env.action_space)
    landed = collect_demonstrations(policy, env, 20)
    good = [each for each in landed.episodes if each.rew.sum() >= LANDED][:10]
    random = collect_demonstrations(policy, env, 30, noise=1.0)
    return {"lunarlander": replace(landed, episodes=good, seeds=[]), "lunarlander_random": random}


def pendulum() -> dict[str, Demonstrations]:
    """Train ppo, and play with early checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        limits = ("run.max_steps=57_344", "run.checkpoint_every=8_192", "run.keep=10")
        guerdon.train("pendulum_ppo", "seed=0", *limits, f"run.dir={run}", display="none")
        early = collect_run(run, 4, checkpoint=tuple(EARLY), seed=1)
        novice = collect_run(run, 10, checkpoint=NOVICE, seed=2)
    return {"pendulum_early": early, "pendulum_novice": novice}


if __name__ == "__main__":
    main()
