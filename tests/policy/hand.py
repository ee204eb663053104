"""Five steps whose targets can be computed in the head.

They were paid 1, 2, 3, 4 and 5. The second one ended an episode terminated, the fourth one
truncated, and the fifth is the newest: its episode goes on.
"""

from typing import Any

import numpy as np
import torch

from guerdon.data import Batch, ReplayBuffer

GAMMA = 0.5
TARGETS = {
    # With a value of 10 everywhere: reward + 0.5 * 10, but not beyond what is terminated.
    1: [6.0, 2.0, 8.0, 9.0, 10.0],
    # Two rewards where the episode has them: 1 + 0.5 * 2, and 3 + 0.5 * 4 + 0.25 * 10.
    2: [2.0, 2.0, 7.5, 9.0, 10.0],
    3: [2.0, 2.0, 7.5, 9.0, 10.0],
}


def five_steps(policy: Any) -> Any:
    """A buffer that holds them."""
    buffer = ReplayBuffer(8, seed=0) if policy.on_policy else policy.make_buffer(8, 1, 0)
    shape, space = policy.observation_space.shape, policy.action_space
    for i in range(5):
        obs, act = np.full(shape, i, np.float32), np.zeros(space.shape, space.dtype)
        after = i + (0.5 if i in (1, 3) else 1.0)
        buffer.add(
            obs=obs, act=act, rew=i + 1.0, terminated=i == 1, truncated=i == 3,
            obs_next=np.full(shape, after, np.float32), policy=_acted(policy, obs, act),
        )  # fmt: skip
    return buffer


@torch.no_grad()
def _acted(policy: Any, obs: np.ndarray, act: np.ndarray) -> dict[str, np.ndarray]:
    """What an on-policy policy stores with an action."""
    if not policy.on_policy:
        return {"raw": act}
    stored = policy(Batch(obs=obs[None])).get("policy")
    return {"raw": act} if stored is None else stored[0].to_dict() | {"raw": act}


@torch.no_grad()
def answer(network: Any, bias: str, *values: float) -> None:
    """Lets a network give these numbers for whatever it is asked.

    Args:
        network: Of which all weights become 0, except
        bias: this parameter, which gets
        *values: one number, or one for each of its entries.
    """
    for parameter in network.parameters():
        parameter.zero_()
    last = dict(network.named_parameters())[bias]
    last.copy_(torch.tensor(values).expand(last.numel()).reshape(last.shape))


def processed(policy: Any, buffer: Any, batch_size: int = 0) -> Any:
    """What `process_fn` gives for all rows in time order."""
    batch, indices = policy.read(batch_size, buffer, policy.fields)
    return policy.process_fn(batch.to_device(policy.device), buffer, indices)
