"""Gradients of processes that learn together are those of one process."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributed import FileStore

from guerdon.data import Batch
from guerdon.policy import create_policy
from guerdon.policy.ranks import Ranks, join
from tests.processes import Program

ROWS = 11  # which two or three processes do not divide
CASES = {
    "ppo": {"type": "ppo", "entropy_coefficient": 0.01, "target_kl": 1e-9},
    "a2c": {"type": "a2c", "normalize_advantage": True},
    "impala": {"type": "impala", "normalize_advantage": True},
    "dqn": {"type": "dqn", "prioritized": True, "n_step": 3},
}


def learned(case, ranks):
    """Learn for some updates; return gradients, weights, errors and metrics."""
    model = {"model": {"hidden": [8], "normalize_obs": True}}
    box = spaces.Box(-1, 1, (3,), np.float32)
    policy = create_policy(CASES[case] | model, box, spaces.Discrete(2), seed=5)
    policy.learn_with(ranks)
    (optimizer,) = policy.optimizers.values()
    gradients = []
    optimizer.average = lambda grad: gradients.append(ranks.average(grad).clone())
    generator = torch.Generator().manual_seed(1)
    errors, metrics = [], {}
    for _ in range(2):
        columns = torch.randn(8, ROWS, generator=generator)
        names = ("advantage", "returns", "value", "log_prob", "target", "weight", "rho", "log_rho")
        batch = Batch(dict(zip(names, columns, strict=True)))
        batch.obs = torch.randn(ROWS, 3, generator=generator)
        batch.act = torch.randint(2, (ROWS,), generator=generator)
        metrics = ranks.learn(policy, batch, {"batch_size": 5, "repeat": 2})
        errors.append(batch.get("priority", torch.zeros(0)))
    found = {f"gradient {i}": each for i, each in enumerate(gradients)}
    found |= {name: torch.as_tensor(value).float() for name, value in metrics.items()}
    return found | policy.state_dict() | {"errors": torch.cat(errors)}


def main(case, rank, size, folder):
    rank, size = int(rank), int(size)
    add = join(rank, size, FileStore(f"{folder}/store", size), torch.device("cpu"), 60)
    found = learned(case, Ranks(rank, size, add))
    np.savez(f"{folder}/{rank}.npz", **{name: each.numpy() for name, each in found.items()})


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_several_processes_are_those_of_one(case, tmp_path):
    size = 3 if case == "dqn" else 2
    code = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
    programs = [Program("-c", code, case, rank, size, tmp_path) for rank in range(size)]
    for program in programs:
        with program:
            _, errors = program.communicate()
            assert program.returncode == 0, errors
    alone = learned(case, Ranks())
    found = [dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(size)]
    assert any(name.startswith("gradient") for name in alone)
    for name, value in alone.items():
        first = found[0][name]
        assert np.array_equal(first, found[1][name]), name  # bit for bit
        tolerance = 1e-5 if name.startswith("train/") else 1e-6
        assert first == pytest.approx(value.numpy(), abs=tolerance), name


def test_batches_that_are_smaller_than_the_number_of_processes():
    sums = []
    ranks = Ranks(1, 4, lambda value: sums.append(value.clone()))
    rows = torch.arange(3.0)
    assert ranks.mine(rows).equal(rows)
    ranks.average(rows.clone())
    assert sums[0].equal(rows / 4)  # of the same rows in each


def test_rows_are_divided_among_processes():
    batch = Batch(obs={"a": torch.arange(7), "b": torch.arange(7)}, act=torch.arange(7))
    parts = [Ranks(rank, 3).mine(batch) for rank in range(3)]
    assert torch.cat([part.obs.a for part in parts]).equal(torch.arange(7))
    assert [len(part.act) for part in parts] == [2, 2, 3]
