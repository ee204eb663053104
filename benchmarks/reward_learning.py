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

from trials import ROOT, Row, run_missing

RESULTS = ROOT / "benchmarks" / "results" / "rewards"
RANDOM = "reward.expert_data_path=zoo:cartpole_fixed_random"


@dataclass(frozen=True)
class Section:
    """Rows that are read beside each other."""

    title: str
    text: str
    rows: tuple[Row, ...]


def imitation(preset: str, goal: float | None, random: str) -> tuple[Row, Row]:
    """A row, and its control: the same with demonstrations of random actions."""
    return Row(preset, goal), Row(preset, variant="random", overrides=(random,))


SECTIONS = (
    Section(
        "Imitation on CartPole with a fixed horizon",
        "500 steps, whatever happens; the true return counts those before the pole falls. Nothing "
        "about the length of an episode tells how good it was. Ten demonstrated episodes (return "
        "500), 100,000 steps.",
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
    ),
    Section(
        "CartPole-v1, which proves nothing",
        "Here an episode ends when the pole falls. A reward that is never negative then teaches to "
        "balance whatever the demonstrations show, and one of either sign or never positive may "
        "teach to end: see the rows with random demonstrations, with a constant, and with `log_d`.",
        (
            *imitation("cartpole_ppo_gail", 475.0, "reward.expert_data_path=zoo:cartpole_random"),
            Row("cartpole_ppo_gail", variant="log_d", overrides=("reward.form=log_d",)),
            Row("cartpole_ppo", variant="constant", overrides=("reward=constant",)),
            Row("cartpole_dqn_gail", 475.0),
        ),
    ),
    Section(
        "Curiosity",
        "DeepSea with 20 by 20 cells: only one of a million action sequences finds the treasure, "
        "and every step towards it costs. The same ppo with and without a bonus; 200,000 steps.",
        (
            Row("deepsea_ppo", 0.5),
            *(Row(f"deepsea_ppo_{model}", 0.5) for model in ("rnd", "icm", "ngu")),
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
