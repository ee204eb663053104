"""Run the three-stage workflow with 3 seeds, and write docs/workflow_results.md from the results.

Every stage is a command of the command line; it writes one result file and is not repeated. True
success is the environment's, which is not used for training in the third stage.

    python benchmarks/workflow_learning.py            # what is missing, then the page
    python benchmarks/workflow_learning.py --jobs 2 --chains reach
    python benchmarks/workflow_learning.py --report   # the page alone

ManiSkill's chains are run where ManiSkill is installed, and only if they are named (`make
.venv-maniskill/.maniskill`). Without images a seed takes about ten minutes on one core; with
images, about 5 hours on two cores, which draw every image:

    .venv-maniskill/bin/python benchmarks/workflow_learning.py --chains pushcube_state
    .venv-maniskill/bin/python benchmarks/workflow_learning.py --chains pushcube --seeds 1
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trials import ROOT, changed, write

RESULTS = ROOT / "benchmarks" / "results" / "workflow"
WORK = ROOT / "runs" / "workflow"  # images, classifiers and policies for later stages
SEEDS = 3
CURVES = ("eval/success_rate", "eval/success_at_prediction", "reward/success_rate")
EVALUATED = ("eval.episodes=100", "eval.n_envs=50")
IMAGES = (  # a policy that observes images alone
    "policy.model.keys=[base_camera]",
    "policy.model.share_encoder=true",
    "policy.learning_rate=1e-3",
    "learn.repeat=4",
    "run.max_steps=300_000",
    "eval.every=40_000",
)
PER_STEP = "reward.reward_mode=per_step"  # rewards every frame, so that the policy stays


@dataclass(frozen=True)
class Stage:
    """One command; ``{name}`` in its words is the folder of an earlier stage."""

    name: str
    words: tuple[str, ...]
    out: str
    """Option for the output folder, which follows it."""
    needs: tuple[str, ...] = ()
    """Stages whose folders it reads."""

    def command(self, folder: Path, seed: int | str) -> list[str]:
        """Return the whole command, with the folders of stages in a folder."""
        places = {name: str(folder / name) for name in (*self.needs, self.name)}
        words = list(self.words)
        for name, place in places.items():
            words = [word.replace(f"{{{name}}}", place) for word in words]
        own = f"{self.out}{places[self.name]}"
        seeded = ["--seed", str(seed)] if self.out == "--out=" else [f"seed={seed}"]
        return [*words, *seeded, own]


@dataclass(frozen=True)
class Chain:
    """Stages that run in order, with one seed."""

    name: str
    stages: tuple[Stage, ...] = field(default=())


def train(name: str, *words: str, needs: tuple[str, ...] = ()) -> Stage:
    """Train a policy."""
    given = {word.partition("=")[0] for word in words}
    evaluated = (word for word in EVALUATED if word.partition("=")[0] not in given)
    return Stage(name, ("train", *words, *evaluated, "--display=none"), "run.dir=", needs)


def collect(name: str, preset: str, *words: str) -> Stage:
    """Train a policy on the environment's reward, and save its camera images."""
    kinds = [f"reward.data_collection.{kind}_dir={{{name}}}_data/{kind}" for kind in _KINDS]
    return train(name, preset, "reward.collect_data=true", *kinds, *words)


def fit(name: str, preset: str, data: str, *words: str) -> Stage:
    """Fit a classifier to the images of another stage."""
    kinds = [f"reward.data.{kind}_dir={{{data}}}_data/{kind}" for kind in _KINDS]
    parts = ("reward", "fit", preset, *kinds, *words, "--display=none")
    return Stage(name, parts, "reward.save_dir=", (data,))


def learn(name: str, preset: str, classifier: str, *words: str) -> Stage:
    """Train a policy on a classifier."""
    path = f"reward.checkpoint_path={{{classifier}}}"
    return train(name, preset, "reward=classifier", path, *words, needs=(classifier,))


_KINDS = ("positive", "negative")
REACH = Chain(
    "reach",
    (
        collect("environment", "reach_ppo"),
        fit("classifier", "reach_classifier", "environment"),
        learn("learned", "reach_ppo", "classifier", "run.max_steps=80_000"),
        learn(
            "loophole", "reach_loophole_ppo", "classifier", "run.max_steps=80_000"
        ),
        learn(
            "refitted", "reach_loophole_ppo", "classifier",
            "reward.cotrain=true", "run.max_steps=200_000",
        ),
        train("images_environment", "reach_ppo", *IMAGES),
        learn("images_learned", "reach_ppo", "classifier", PER_STEP, *IMAGES),
        fit(
            "wide_classifier", "reach_classifier", "environment",
            "reward.model.width=64", "reward.optim.lr=3e-4",
        ),
        learn("wide_learned", "reach_ppo", "wide_classifier", "run.max_steps=80_000"),
    ),
)  # fmt: skip
SPARSE = "env.kwargs.reward=success"
PUSH = Chain(
    "push",
    (
        collect("environment", "push_ppo"),
        fit("classifier", "push_classifier", "environment"),
        learn("learned", "push_ppo", "classifier", SPARSE),
        learn("per_step", "push_ppo", "classifier", SPARSE, PER_STEP),
        train(
            "with_dense", "push_ppo", "reward.checkpoint_path={classifier}",
            "reward.terms={classifier: {}, env: {weight: 0.1}}",
            needs=("classifier",),
        ),
        Stage(
            "demonstrations",
            ("reward", "collect", "{environment}", "--episodes=400", "--noise=0,0.3,0.6,1"),
            "--out=",
            ("environment",),
        ),
        fit("demonstrated_classifier", "push_classifier", "demonstrations"),
        learn("demonstrated", "push_ppo", "demonstrated_classifier", SPARSE),
    ),
)  # fmt: skip
CHAINS = (REACH, PUSH)
ROBOT = (  # on a CPU, which draws about ten images a second
    "env.n_envs=2",
    "env.backend=subprocess",
    "env.max_episode_steps=25",
    "collect.n_step=1_000",
    "run.max_steps=100_000",
    "eval.every=25_000",
    "eval.episodes=20",
    "eval.n_envs=2",
)
PUSHCUBE = Chain(
    "pushcube",
    (
        collect("environment", "pushcube_ppo", *ROBOT),
        fit("classifier", "pushcube_classifier", "environment"),
        learn("learned", "pushcube_ppo", "classifier", PER_STEP, *ROBOT),
    ),
)
PUSHCUBE_STATE = Chain(
    "pushcube_state",
    (
        train(
            "environment", "pushcube_ppo", "env.kwargs.obs=state", "policy.model.keys=null",
            "env.backend=base", "env.max_episode_steps=25", "policy.learning_rate=1e-3",
            "policy.anneal=true", "run.max_steps=100_000", "eval.every=20_000", "eval.n_envs=2",
        ),
    ),
)  # fmt: skip


def result_file(chain: Chain, stage: Stage, seed: int) -> Path:
    """Return the result file of a stage."""
    return RESULTS / f"{chain.name}_{stage.name}_{seed}.json"


def results_of(chain: Chain, name: str) -> list[dict[str, Any]]:
    """Return the results of all seeds of a stage that were run."""
    stage = next(stage for stage in chain.stages if stage.name == name)
    paths = (result_file(chain, stage, seed) for seed in range(SEEDS))
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def said(chain: Chain, stage: Stage, seed: int) -> dict[str, Any]:
    """Return the command of a stage, with relative folders, and its whole config."""
    from guerdon.config import compose
    from guerdon.training.fit_files import compose_fit

    words = stage.command(Path(chain.name), seed)
    values = [word for word in words if not word.startswith("--")]
    config: Any = {}
    if words[0] == "train":
        config = compose(values[1], values[2:])
    elif words[1] == "fit":
        config = compose_fit(values[2], values[3:])
    told = config and config.model_dump(mode="json")
    if "run" in told:  # is resolved by the run
        del told["run"]["checkpoint_every"]
    return {"command": " ".join(["guerdon", *words]), "config": told}


def is_done(chain: Chain, stage: Stage, seed: int) -> bool:
    """Return whether a stage, and those that it needs, have results of the same config."""
    path = result_file(chain, stage, seed)
    if not path.exists():
        return False
    kept, now = json.loads(path.read_text()), said(chain, stage, seed)
    if kept["command"] != now["command"] or changed(kept["config"], now["config"]):
        return False
    before = [other for other in chain.stages if other.name in stage.needs]
    return all(is_done(chain, other, seed) for other in before)


def run_chain(chain: Chain, seed: int) -> str:
    """Run the stages without a result, and those that they need."""
    folder = WORK / f"{chain.name}_{seed}"
    missing = {stage.name for stage in chain.stages if not is_done(chain, stage, seed)}
    for stage in reversed(chain.stages):
        if stage.name in missing:
            missing |= {name for name in stage.needs if not (folder / name).exists()}
    for stage in chain.stages:
        if stage.name in missing:
            _run(chain, stage, seed, folder)
    return f"{chain.name} seed {seed}: {len(missing)} stages were run"


def _run(chain: Chain, stage: Stage, seed: int, folder: Path) -> None:
    for path in (folder / stage.name, folder / f"{stage.name}_data"):
        shutil.rmtree(path, ignore_errors=True)  # of a killed run
    folder.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        [sys.executable, "-m", "guerdon", *stage.command(folder, seed)],
        check=False, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if ended.returncode < 0:
        raise SystemExit(f"{stage.name} was stopped; the same command runs it again")
    own = folder / stage.name
    if stage.out == "--out=":  # where the fit looks for it
        own.rename(folder / f"{stage.name}_data")
        own.mkdir()
    found = _found(own) if not ended.returncode else {"error": ended.stderr[-500:]}
    kept = {"seed": seed, **said(chain, stage, seed), **found}
    write(result_file(chain, stage, seed), kept)
    print(f"{chain.name} {stage.name} seed {seed}: {_in_words(found)}", flush=True)


def _found(folder: Path) -> dict[str, Any]:
    """Return the summary and the curves of a stage."""
    if not (folder / "summary.json").exists():
        return {}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curves = {
        name: [[line["step"], line[name]] for line in lines if name in line] for name in CURVES
    }
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("save_dir", "data", "labels"):  # folders, the hash of their data, and files
        summary.pop(key, None)
    return {"summary": summary, "curves": {name: curve for name, curve in curves.items() if curve}}


def _in_words(found: dict[str, Any]) -> str:
    summary = found.get("summary", {})
    if "error" in found:
        return f"failed: {found['error']}"
    if "test" in summary:
        return f"PR-AUC {summary['test']['pr_auc']:.3f}"
    names = ("eval_success_rate", "eval_success_at_prediction", "eval_model_success_rate")
    return ", ".join(f"{name} {summary[name]:.2f}" for name in names if name in summary)


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="chains side by side")
    parser.add_argument("--chains", default=",".join(chain.name for chain in CHAINS))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds")
    parser.add_argument("--report", action="store_true", help="only write the page")
    options = parser.parse_args()
    if not options.report:
        every = (*CHAINS, PUSHCUBE, PUSHCUBE_STATE)
        chosen = [chain for chain in every if chain.name in options.chains.split(",")]
        seeds = range(options.seeds)
        with ThreadPoolExecutor(options.jobs) as pool:
            tasks = [pool.submit(run_chain, chain, seed) for chain in chosen for seed in seeds]
            for task in as_completed(tasks):
                print(task.result(), flush=True)
    if find_spec("matplotlib") is not None:
        from workflow_report import write_report

        write_report(ROOT / "docs")


if __name__ == "__main__":
    main()
