"""Train on learned rewards, and write docs/reward_results.md from the results.

Returns are the environment's. The controls of imitation are demonstrations of random actions, and a
constant reward.

    python benchmarks/reward_learning.py            # what is missing, then the page
    python benchmarks/reward_learning.py --jobs 2 --rows cartpole_fixed_ppo_gail
    python benchmarks/reward_learning.py --report   # the page alone
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from trials import ROOT, SEEDS, Row, run_missing

RESULTS = ROOT / "benchmarks" / "results" / "rewards"
RANDOM = "reward.expert_data_path=zoo:cartpole_fixed_random"
RANDOM_V1 = "reward.expert_data_path=zoo:cartpole_random"
NORMALIZED = ("policy.model.normalize_obs=true", "reward.normalize=true")


@dataclass(frozen=True)
class Section:
    """Rows of one table."""

    title: str
    text: str
    rows: tuple[Row, ...]
    demonstrations: tuple[str, str] | None = None
    """Demonstrations of the expert and of random actions, which normalise returns."""


def imitation(preset: str, goal: float | None, random: str, seeds: int = SEEDS) -> tuple[Row, Row]:
    """Return a row, and its control with demonstrations of random actions."""
    control = Row(preset, variant="random", overrides=(random,), seeds=seeds)
    return Row(preset, goal, seeds), control


SECTIONS = (
    Section(
        "Imitation on CartPole with a fixed horizon",
        "Every episode has 500 steps, and the true return counts those before the pole falls, so "
        "that the length of an episode reveals nothing. Ten demonstrated episodes (return 500), "
        "100,000 steps (`fairl`: 300,000).",
        (
            *(
                row
                for model in ("gail", "airl", "red", "pwil")
                for row in imitation(f"cartpole_fixed_ppo_{model}", 475.0, RANDOM)
            ),
            *(
                row
                for model in ("pdeil", "gcl", "fairl")
                for row in imitation(f"cartpole_fixed_ppo_{model}", None, RANDOM)
            ),
            *imitation("cartpole_fixed_dqn_sqil", None, RANDOM),
            Row("cartpole_fixed_ppo", variant="constant", overrides=("reward=constant",)),
        ),
        ("zoo:cartpole_fixed", "zoo:cartpole_fixed_random"),
    ),
    Section(
        "CartPole-v1, where survival is rewarded",
        "Here an episode ends when the pole falls. A reward that is never negative rewards "
        "survival, so that the policy balances whatever the demonstrations show; one that can be "
        "negative may reward termination. See the rows with random demonstrations, a constant, "
        "`log_d` and `airl`.",
        (
            *imitation("cartpole_ppo_gail", 475.0, RANDOM_V1),
            Row("cartpole_ppo_gail", variant="log_d", overrides=("reward.form=log_d",)),
            Row(
                "cartpole_ppo",
                variant="airl",
                overrides=("reward=airl", "reward.expert_data_path=zoo:cartpole"),
            ),
            Row("cartpole_ppo", variant="constant", overrides=("reward=constant",)),
            *imitation("cartpole_dqn_gail", 475.0, RANDOM_V1),
        ),
    ),
    Section(
        "Ranked and noisy demonstrations",
        "Fixed-horizon CartPole with demonstrations of an expert that takes random actions. `trex` "
        "gets the ranking of episodes with returns up to 100, cut to 150 steps, with 40 to 100 % "
        "random actions; its goal is to exceed them. `drex` gets the share of random actions, 20 "
        "to 100 %, in episodes that are cut to 100 steps; a return above 100 is therefore not "
        "evidence that the policy exceeds the demonstrator. The control has a shuffled ranking; "
        "200,000 steps.",
        (
            Row("cartpole_fixed_ppo_trex", 100.0),
            Row("cartpole_fixed_ppo_drex", 100.0),
            Row(
                "cartpole_fixed_ppo_trex",
                variant="shuffled",
                overrides=("reward.rank_by=random",),
            ),
        ),
    ),
    Section(
        "Pendulum-v1",
        "Continuous actions, 20,000 steps of sac, which reaches -144 with the true reward. "
        "`preference` queries a synthetic teacher for 200 pairs of segments.",
        (
            *imitation("pendulum_sac_gail", None, "reward.expert_data_path=zoo:pendulum_random"),
            Row("pendulum_sac", variant="constant", overrides=("reward=constant",)),
            Row("pendulum_sac_preference", -200.0),
        ),
        ("zoo:pendulum", "zoo:pendulum_random"),
    ),
    Section(
        "Hopper-v5",
        "MuJoCo, 100,000 steps of sac, three demonstrated episodes, 3 seeds. Episodes end when the "
        "hopper falls, so absorbing states are scored, too (`reward.absorbing=true`).",
        (
            *imitation("hopper_sac_gail", None, "reward.expert_data_path=zoo:hopper_random", 3),
            Row(
                "hopper_sac",
                variant="constant",
                overrides=(
                    "reward=constant",
                    "env.n_envs=4",
                    "collect.n_step=4",
                    "learn.updates_per_collect=2",
                    "eval.every=10_000",
                    "run.max_steps=100_000",
                ),
                seeds=3,
            ),
        ),
        ("zoo:hopper", "zoo:hopper_random"),
    ),
    Section(
        "Curiosity",
        "DeepSea with 20 by 20 cells: one of a million action sequences reaches the treasure, and "
        "every step towards it has a small negative reward. `ppo` with and without a bonus; "
        "200,000 steps.",
        (
            Row("deepsea_ppo", 0.5),
            Row("deepsea_ppo", 0.5, variant="normalized", overrides=NORMALIZED),
            *(Row(f"deepsea_ppo_{model}", 0.5) for model in ("rnd", "icm", "ngu")),
        ),
    ),
    Section(
        "Curiosity in MiniGrid",
        "DoorKey-8x8 has no reward until a key is found and a door opened; Empty-8x8 is an empty "
        "room, for comparison. Observations are the 7 by 7 cells in front of the agent. `ppo` "
        "without a bonus solves DoorKey on some seeds, but DeepSea (above) on none.",
        (
            Row("minigrid_empty_ppo", 0.8),
            *(Row(f"minigrid_empty_ppo_{model}", 0.8) for model in ("rnd", "icm", "ngu")),
            Row("minigrid_doorkey_ppo", 0.8),
            Row("minigrid_doorkey_ppo", 0.8, variant="normalized", overrides=NORMALIZED),
            *(Row(f"minigrid_doorkey_ppo_{model}", 0.8) for model in ("rnd", "icm", "ngu")),
        ),
    ),
    Section(
        "Hindsight experience replay",
        "BitFlip with 15 bits: reward -1 per step until all bits equal the goal, 15 steps at most, "
        "about -6.5 at best. `dqn` with and without relabelled goals; 150,000 steps.",
        (Row("bitflip_dqn", -8.0), Row("bitflip_dqn_her", -8.0)),
    ),
)


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="presets or rows, with commas; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only write the page")
    options = parser.parse_args()
    wanted = set(options.rows.split(",")) if options.rows else None
    rows = [
        row
        for section in SECTIONS
        for row in section.rows
        if wanted is None or wanted & {row.preset, row.name}
    ]
    if not options.report:
        run_missing(rows, RESULTS, options.jobs)
    from reward_report import write_report

    write_report(SECTIONS, RESULTS, ROOT / "docs")


if __name__ == "__main__":
    main()
