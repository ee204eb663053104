"""The three stages in two seconds: all of them, and none good for anything."""

from guerdon.training.workflow import Workflow

BOTH = (
    "env.n_envs=16",
    "collect.n_step=800",
    "learn.batch_size=100",
    "learn.repeat=1",
    "eval.episodes=4",
    "eval.n_envs=4",
    "eval.every=800",
)
COLLECT = ("run.max_steps=1_600",)
FIT = (
    "reward.model.width=4",
    "reward.model.hidden_dim=16",
    "reward.data.max_frames=100",
    "reward.num_epochs=1",
)
LEARN = ("run.max_steps=800", "reward.min_precision=0", "reward.min_recall=0")
TINY = Workflow(collect=COLLECT, fit=FIT, learn=LEARN, both=BOTH)
