"""The three stages of RLinf's document on Ray."""

import shutil
from pathlib import Path

import pytest

from guerdon.compat.rlinf.main import train_embodied_agent
from guerdon.compat.rlinf.workers.reward.reward_worker import RewardWorker
from tests.compat.rlinf.test_document import EMBODIMENT, REACH, SMALL
from tests.training.staging import BOTH

CONFIG = ["--config-path", ".", "--config-name", "reach_ppo_cnn", *BOTH]
FIRST = ["reward.collect_data=True", "reward.use_reward_model=False", "run.max_steps=4_800"]
THIRD = [
    "reward.use_reward_model=True", "reward.collect_data=False", "run.max_steps=800",
    "reward.reward_model.checkpoint_path=fitted", "reward.min_precision=0", "reward.min_recall=0",
]  # fmt: skip
RAY = ["runtime=ray", "runtime.num_collectors=2"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:keys without a meaning in guerdon")
@pytest.mark.filterwarnings("ignore:the encoder of the classifier has no pretrained")
def test_they_give_what_they_give_in_one_process(ray, tmp_path, monkeypatch):
    """In one process, with as many shards of environments."""
    monkeypatch.chdir(tmp_path)
    Path("reach_ppo_cnn.yaml").write_text(REACH)
    fit = [f"reward.data.{each}_dir=reward_data/{each}" for each in ("positive", "negative")]
    fit += [*SMALL, f"reward.save_dir={tmp_path / 'fitted'}"]
    files, found = {}, {}
    for kind, options in (("serial", ["collect.shards=2"]), ("ray", RAY)):
        train_embodied_agent([*CONFIG, *FIRST, *options, f"run.dir={kind}_collect"])
        files[kind] = {str(p): p.read_bytes() for p in sorted(Path("reward_data").rglob("*.npy"))}
        worker = RewardWorker(EMBODIMENT / "config" / "train_reward_model.yaml")
        if kind == "serial":
            worker.fit(fit)
        else:
            actor = ray.remote(RewardWorker).options(runtime_env={}).remote(worker.cfg)
            ray.get(
                actor.fit.remote([each.replace("=reward_", f"={tmp_path}/reward_") for each in fit])
            )
            options = [*RAY, "runtime.num_reward_workers=2"]
        run = train_embodied_agent([*CONFIG, *THIRD, *options, f"run.dir={kind}_learn"])
        found[kind] = run.summary["eval_return_mean"], run.summary["eval_model_success_rate"]
        shutil.rmtree("reward_data")
        shutil.rmtree("fitted")
    assert len(files["serial"]) == 96
    assert files["serial"] == files["ray"]
    assert found["serial"] == found["ray"]
