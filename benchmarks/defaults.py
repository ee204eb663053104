"""Default options on tasks that they were not chosen on, compared with Stable-Baselines3.

    python benchmarks/defaults.py             # what is missing, then docs/defaults.md
    python benchmarks/defaults.py --choose    # candidates on the tasks that defaults are chosen on
    python benchmarks/defaults.py --normalization steady    # see NORMALIZATIONS
    python benchmarks/defaults.py --report    # the page alone

Every task is trained on one thread with 5 seeds (3 for candidates). Final policies are evaluated
without exploration over 50 episodes, whose seeds are not used in training. Runs in `.venv-bench`
(`make .venv-bench/.peers`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from trials import ROOT, write

if TYPE_CHECKING:
    from pathlib import Path

RESULTS = ROOT / "benchmarks" / "results" / "defaults"
PAGE = ROOT / "docs" / "defaults.md"
EPISODES, EVAL_SEED = 50, 10_000
LIBRARIES = ("guerdon", "sb3")


class Task(NamedTuple):
    """An environment and a policy with its default options."""

    env: str
    policy: str
    steps: int
    options: tuple[str, ...] = ()
    """Overrides; none in the table of defaults."""
    candidate: str = ""
    """Name of the overrides."""

    @property
    def name(self) -> str:
        """Name of the result files."""
        parts = [self.env.rpartition(":")[-1], self.policy, self.candidate]
        return "_".join(part for part in parts if part)


TABLE = [
    Task("LunarLander-v3", "ppo", 150_000),
    Task("LunarLander-v3", "dqn", 150_000),
    Task("LunarLanderContinuous-v3", "sac", 50_000),
    Task("BipedalWalker-v3", "ppo", 150_000),
    Task("BipedalWalker-v3", "sac", 50_000),
]
CHOSEN_ON = {
    "ppo": (("Acrobot-v1", 100_000), ("MountainCarContinuous-v0", 100_000), ("Hopper-v5", 150_000)),
    "dqn": (("Acrobot-v1", 100_000), ("CartPole-v1", 50_000)),
    "sac": (("MountainCarContinuous-v0", 50_000), ("Hopper-v5", 50_000)),
}
_SMALL = "learn.batch_size=64"
_OFTEN = "learn.updates_per_collect=8"
NOISE = ("policy.exploration_noise=0.5", "policy.noise_correlation=0.85")
"""Without it, sac does not find the goal of MountainCarContinuous."""
CANDIDATES: dict[str, dict[str, tuple[str, ...]]] = {
    "ppo": {
        "batch256": ("learn.batch_size=256",),
        "batch64": (_SMALL,),
        "batch64_entropy": (_SMALL, "policy.entropy_coefficient=0.01"),
        "batch64_normalize": (_SMALL, "policy.model.normalize_obs=true"),
    },
    "dqn": {
        "updates2": ("learn.updates_per_collect=2",),
        "updates8": (_OFTEN,),
        "updates8_rate5e-4": (_OFTEN, "policy.learning_rate=5e-4"),
        "updates8_rate2.5e-4": (_OFTEN, "policy.learning_rate=2.5e-4"),
        "updates4_batch128": ("learn.updates_per_collect=4", "learn.batch_size=128"),
    },
    "sac": {
        "rate3e-4": ("policy.learning_rate=3e-4",),
        "rate1e-3": ("policy.learning_rate=1e-3",),
    },
}  # fmt: skip
NORMALIZATIONS = {
    "running": "running mean and variance (0.2.0)",
    "steady": "mean of the first 2,000 observations, maximum of the variance",
}
"""Normalisation of observations of `ppo`. Results of `running` are trained with guerdon 0.2.0 first
in PYTHONPATH."""
NORMALIZATION_SEEDS = 10
LINE = "benchmarks/line.py:Line"  # from the root of the repository


def normalization_tasks(name: str) -> list[Task]:
    """Tasks that the normalisation of observations was chosen on."""
    steps = {LINE: 20_000, "CartPole-v1": 100_000, **dict(CHOSEN_ON["ppo"])}
    return [Task(env, "ppo", count, candidate=name) for env, count in steps.items()]


def candidate_tasks() -> list[Task]:
    """Every candidate on every task that defaults are chosen on."""
    return [
        Task(env, policy, steps, options + _needed(env, policy), name)
        for policy, tasks in CHOSEN_ON.items()
        for env, steps in tasks
        for name, options in CANDIDATES[policy].items()
    ]


def _needed(env: str, policy: str) -> tuple[str, ...]:
    return NOISE if (env, policy) == ("MountainCarContinuous-v0", "sac") else ()


def result_file(library: str, task: Task, seed: int) -> Path:
    """File of one run."""
    return RESULTS / f"{library}_{task.name}_{seed}.json"


def run(library: str, task: Task, seed: int) -> float:
    """Train and evaluate once, and write the result."""
    import torch

    torch.set_num_threads(1)
    try:
        returns = _guerdon(task, seed) if library == "guerdon" else _sb3(task, seed)
        found: dict[str, Any] = {"return_mean": float(np.mean(returns)), "returns": returns}
    except Exception as error:  # a run that fails counts
        found = {"return_mean": None, "error": repr(error)[-500:]}
    content = {"library": library, "seed": seed, **task._asdict(), **found}
    write(result_file(library, task, seed), content)
    return found["return_mean"]


def _guerdon(task: Task, seed: int) -> list[float]:
    import guerdon
    from guerdon.training.replay import evaluate_run

    with tempfile.TemporaryDirectory() as folder:
        guerdon.train(
            None, f"env.id={task.env}", f"policy={task.policy}", *task.options,
            f"run.max_steps={task.steps}", f"run.dir={folder}/run",
            f"eval.every={task.steps}", "eval.episodes=1",
            seed=seed, display="none",
        )  # fmt: skip
        played = evaluate_run(
            f"{folder}/run", checkpoint="latest", episodes=EPISODES, seed=EVAL_SEED
        )
    return list(played["returns"])


def _sb3(task: Task, seed: int) -> list[float]:
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    kind = getattr(stable_baselines3, task.policy.upper())
    model = kind("MlpPolicy", gymnasium.make(task.env), seed=seed, device="cpu")
    model.learn(task.steps)
    env = Monitor(gymnasium.make(task.env))
    env.reset(seed=EVAL_SEED + seed)
    returns, _ = evaluate_policy(model, env, EPISODES, return_episode_rewards=True)
    return [float(value) for value in returns]


def run_missing(tasks: list[tuple[str, Task, int]], jobs: int) -> None:
    """Run what has left no result, the longest first."""
    missing = [task for task in tasks if not result_file(*task).exists()]
    missing.sort(key=lambda task: (task[1].policy != "sac", task[0] != "sb3"))
    print(f"{len(missing)} of {len(tasks)} runs to do", flush=True)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run, *task): task for task in missing}
        for future in as_completed(futures):
            library, task, seed = futures[future]
            print(f"{library} {task.name} seed {seed}: {future.result()}", flush=True)


def means(library: str, task: Task) -> list[float]:
    """Mean returns of the seeds that were run."""
    paths = sorted(RESULTS.glob(f"{library}_{task.name}_[0-9].json"))
    found = [json.loads(path.read_text())["return_mean"] for path in paths]
    return [value for value in found if value is not None]


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def difference(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Difference of the means, and its 95 % bootstrap interval."""
    generator = np.random.default_rng(0)
    draws = [generator.choice(values, (10_000, len(values))).mean(1) for values in (ours, theirs)]
    low, high = np.quantile(draws[0] - draws[1], (0.025, 0.975))
    return float(np.mean(ours) - np.mean(theirs)), float(low), float(high)


def _cell(values: list[float]) -> str:
    each = ", ".join(f"{value:.0f}" for value in values)
    return f"{np.mean(values):.0f} ({each})" if values else ""


def write_page() -> None:
    """Write the page from the result files."""
    lines = [
        "# Defaults on other tasks",
        "",
        "Written by `python benchmarks/defaults.py` from the files in",
        "[`benchmarks/results/defaults`](../benchmarks/results/defaults). The default options of",
        "guerdon were chosen on Acrobot, CartPole, MountainCarContinuous and Hopper (below). This",
        "table compares them with the defaults of Stable-Baselines3 on LunarLander and",
        "BipedalWalker, on which no candidate was tried. Returns of final policies over 50",
        "episodes without exploration: the mean over 5 seeds, and each seed. The interval of the",
        "difference is a 95 % bootstrap interval over seeds.",
        "",
        "| task | policy | steps | guerdon | Stable-Baselines3 | difference |",
        "|---|---|---:|---|---|---|",
    ]
    for task in TABLE:
        ours, theirs = (means(library, task) for library in LIBRARIES)
        if ours and theirs:
            mean, low, high = difference(ours, theirs)
            lines.append(
                f"| {task.env} | {task.policy} | {task.steps:,} | {_cell(ours)} | {_cell(theirs)} "
                f"| {mean:+.0f} ({low:+.0f} to {high:+.0f}) |"
            )
    lines += [
        "",
        "## Choice of the defaults",
        "",
        "Candidates with 3 seeds each; the numbers of steps are in the headings. `ppo` and `dqn`",
        "were chosen after seeing the results, as the candidates that fail on the fewest tasks:",
        "`ppo` with minibatches of 64 and normalised observations, `dqn` with an update per step",
        "and a learning rate of 5e-4 (2.5e-4 was added after the others had been seen). The rule",
        "for `sac` was to keep 3e-4 unless the mean of 1e-3 is higher on both tasks; on",
        "MountainCarContinuous the means differ by 0.2, so that Hopper decided. On",
        f"MountainCarContinuous, `sac` has `{' '.join(NOISE)}`.",
        "",
    ]
    for policy, tasks in CHOSEN_ON.items():
        lines += [
            f"| `{policy}` | " + " | ".join(f"{env}, {steps:,}" for env, steps in tasks) + " |",
            "|---|" + "---|" * len(tasks),
        ]
        for name, options in CANDIDATES[policy].items():
            cells = [
                _cell(means("guerdon", Task(env, policy, steps, candidate=name)))
                for env, steps in tasks
            ]
            lines.append(f"| `{' '.join(options)}` | " + " | ".join(cells) + " |")
        lines.append("")
    PAGE.write_text("\n".join([*lines, *_normalization_table()]).rstrip() + "\n")


def _normalization_table() -> list[str]:
    tables = {name: normalization_tasks(name) for name in NORMALIZATIONS}
    lines = [
        "## Normalised observations",
        "",
        "`ppo` normalises observations by default. On the line (`benchmarks/line.py`), a policy",
        "that goes right moves the running mean, which changes the inputs of the network and with",
        "them the policy. A steady mean does not move. The choice was made on these tasks, before",
        "LunarLander and BipedalWalker were trained again. Final policies of",
        f"{NORMALIZATION_SEEDS} seeds, with the 95 % bootstrap interval of the mean:",
        "",
        "| task | steps | " + " | ".join(NORMALIZATIONS.values()) + " |",
        "|---|---:|" + "---|" * len(tables),
    ]
    for row in zip(*tables.values(), strict=True):
        cells = [_interval_cell(means("guerdon", task)) for task in row]
        name = row[0].env.rpartition(":")[-1]
        lines.append(f"| {name} | {row[0].steps:,} | " + " | ".join(cells) + " |")
    return lines


def _interval_cell(values: list[float]) -> str:
    if not values:
        return ""
    low, high = interval(values)
    seeds = ", ".join(f"{value:.1f}" for value in values)
    return f"**{np.mean(values):.1f}** ({low:.1f} to {high:.1f}); {seeds}"


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--choose", action="store_true", help="run the candidates")
    parser.add_argument("--normalization", choices=NORMALIZATIONS, help="run these tasks")
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--policies", default=",".join(CHOSEN_ON))
    options = parser.parse_args()
    if not options.report:
        if options.normalization:
            tasks = [
                ("guerdon", task, seed)
                for task in normalization_tasks(options.normalization)
                for seed in range(NORMALIZATION_SEEDS)
            ]
        elif options.choose:
            tasks = [("guerdon", task, seed) for task in candidate_tasks() for seed in range(3)]
        else:
            libraries = options.libraries.split(",")
            tasks = [
                (name, task, seed) for name in libraries for task in TABLE for seed in range(5)
            ]
        chosen = options.policies.split(",")
        run_missing([task for task in tasks if task[1].policy in chosen], options.jobs)
    write_page()


if __name__ == "__main__":
    main()
