"""RLinf's scripts: a config folder, a config name, and overrides of Hydra."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guerdon import entry
from guerdon.compat.rlinf.workers.reward.reward_worker import RewardWorker
from guerdon.training.run import Result


def train_embodied_agent(arguments: Sequence[str] | None = None) -> Result:
    """Train a policy, and collect images or learn from a classifier, as the config says."""
    return entry.train(*_source(arguments))


def main_reward(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit a classifier to collected images."""
    source, *overrides = _source(arguments)
    return RewardWorker(source).fit(overrides)


def _source(arguments: Sequence[str] | None) -> list[str]:
    """Return the config file and the overrides."""
    script = Path(sys.argv[0]).resolve().parent
    parser = argparse.ArgumentParser(epilog="KEY=VALUE: overrides, as in reward.num_epochs=50")
    parser.add_argument("--config-path", default=str(script / "config"), help="folder of configs")
    parser.add_argument("--config-name", required=True, help="name of the config in it")
    options, overrides = parser.parse_known_args(arguments)
    folders = (Path(options.config_path), script / options.config_path)
    folder = next((each for each in folders if each.is_dir()), folders[0])
    return [str(folder / f"{options.config_name.removesuffix('.yaml')}.yaml"), *overrides]
