"""Do reward models teach? Trains on learned rewards alone, and writes docs/reward_results.md.

The returns are the environment's own, which no learner has seen. Every row of imitation stands
beside the same with demonstrations of random actions, and beside a reward that is always one.

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
    """Rows that are read beside each other."""

    title: str
    text: str
    rows: tuple[Row, ...]
    demonstrations: tuple[str, str] | None = None
    """Where the expert's are, and where those of random actions: what returns are compared with."""


def imitation(preset: str, goal: float | None, random: str, seeds: int = SEEDS) -> tuple[Row, Row]:
    """A row, and its control: the same with demonstrations of random actions."""
    control = Row(preset, variant="random", overrides=(random,), seeds=seeds)
    return Row(preset, goal, seeds), control


SECTIONS = (
    Section(
        "Imitation on CartPole with a fixed horizon",
        "500 steps, whatever happens; the true return counts those before the pole falls. Nothing "
        "about the length of an episode tells how good it was. Ten demonstrated episodes (return "
        "500), 100,000 steps (`fairl`: 300,000).",
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
        "CartPole-v1, which proves nothing",
        "Here an episode ends when the pole falls. A reward that is never negative then teaches to "
        "balance whatever the demonstrations show, and one of either sign or never positive may "
        "teach to end: see the rows with random demonstrations, with a constant, with `log_d` and "
        "with `airl`.",
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
        "Better than the demonstrations",
        "Fixed-horizon CartPole again, but no demonstration has a return above 100: they are those "
        "of an expert many of whose actions are random, and are short. `trex` is told their "
        "ranking (and nothing of an episode whose return would have been above 100), `drex` how "
        "much noise there was. The control has the ranking shuffled; 200,000 steps.",
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
        "`preference` asks a synthetic teacher 200 times which of two segments is better.",
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
        "hopper falls, so what comes after an end is judged, too (`absorbing`).",
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
        "DeepSea with 20 by 20 cells: only one of a million action sequences finds the treasure, "
        "and every step towards it costs. The same ppo with and without a bonus; 200,000 steps.",
        (
            Row("deepsea_ppo", 0.5),
            Row("deepsea_ppo", 0.5, variant="normalized", overrides=NORMALIZED),
            *(Row(f"deepsea_ppo_{model}", 0.5) for model in ("rnd", "icm", "ngu")),
        ),
    ),
    Section(
        "Curiosity in MiniGrid",
        "A key has to be found and a door opened before there is any reward (DoorKey-8x8); and an "
        "empty room, for comparison (Empty-8x8). The agent sees the seven by seven cells in front "
        "of it. Plain ppo gets through the door on some seeds by itself: DeepSea, above, is the "
        "task on which it does not.",
        (
            Row("minigrid_empty_ppo", 0.8),
            *(Row(f"minigrid_empty_ppo_{model}", 0.8) for model in ("rnd", "icm", "ngu")),
            Row("minigrid_doorkey_ppo", 0.8),
            Row("minigrid_doorkey_ppo", 0.8, variant="normalized", overrides=NORMALIZED),
            *(Row(f"minigrid_doorkey_ppo_{model}", 0.8) for model in ("rnd", "icm", "ngu")),
        ),
    ),
    Section(
        "Goals in hindsight",
        "BitFlip with 15 bits: -1 a step until all bits are as desired, 15 steps at most, about "
        "-6.5 at best. The same dqn with and without other goals; 150,000 steps.",
        (Row("bitflip_dqn", -8.0), Row("bitflip_dqn_her", -8.0)),
    ),
)


def main() -> None:
    """Runs what is missing, and writes the page."""
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
