"""An environment that tells of success, in a module that is quick to import elsewhere."""

from guerdon.envs.counting import Counting


class Succeeding(Counting):
    """Succeeds in even episodes.

    Args:
        keys: By which names it tells.
        always: Whether it tells in every step, or at the end alone.
        **options: Of `Counting`.
    """

    def __init__(self, keys=(), always=True, **options):
        super().__init__(**options)
        self.keys, self.always = keys, always

    def step(self, action):
        obs, rew, terminated, truncated, info = super().step(action)
        if self.always or terminated or truncated:
            info |= dict.fromkeys(self.keys, bool(obs[1] % 2 == 0))
        return obs, rew, terminated, truncated, info
