"""Train Stable-Baselines3 on a reward that guerdon has learned from preferences.

    python examples/sb3_on_learned_reward.py --steps 8000 --sb3-steps 8000 --seed 0

guerdon learns the reward from comparisons of pairs of segments, which a synthetic teacher answers
here. `reward.wrap` turns a Gymnasium environment into one that pays the learned reward, for any
library. Stable-Baselines3 gets no other; the true return is measured for comparison.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

import guerdon


class Walk(gymnasium.Env[np.ndarray, np.ndarray]):
    """Walk along a line to a goal, and stay there for the rest of 20 steps."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Draw the place and the goal."""
        super().reset(seed=seed, options=options)
        self.steps, self.state = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move; the true reward is minus the distance to the goal."""
        self.steps += 1
        self.state[0] = np.clip(self.state[0] + 0.3 * action[0], -2, 2)
        distance = abs(self.state[1] - self.state[0])
        return self.state.copy(), -float(distance), False, self.steps == 20, {}


def main(arguments: list[str] | None = None) -> None:
    """Learn the reward, train on it, and print the true return."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8_000, help="of guerdon, for the reward")
    parser.add_argument("--sb3-steps", type=int, default=8_000, help="of Stable-Baselines3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", default="runs/learned_reward", help="folder of guerdon's run")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # more are slower with small networks

    guerdon.train(
        env={"id": f"{__file__}:Walk"},  # a name by which `load_reward` finds it again
        policy="ppo",
        reward={"type": "preference", "comparisons": 200, "segment_length": 10},
        collect={"n_step": 1_000},
        run={"max_steps": options.steps, "dir": options.dir},
        eval={"episodes": 10},
        seed=options.seed,
    )
    reward = guerdon.load_reward(options.dir)
    model = PPO(
        "MlpPolicy", reward.wrap(Walk()), n_steps=500, batch_size=50, gamma=0.9, learning_rate=1e-3,
        seed=options.seed, device="cpu",
    )  # fmt: skip
    returns = {}
    for name, steps in (("before", 0), ("after", options.sb3_steps)):
        model.learn(steps)
        returns[name], _ = evaluate_policy(model, Walk(), n_eval_episodes=20, warn=False)
    print("true return {before:.2f} before, {after:.2f} after".format(**returns))  # noqa: T201


if __name__ == "__main__":
    main()
