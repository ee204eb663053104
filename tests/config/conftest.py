import pytest

from guerdon.config import registry, sources
from tests.config import fakes

ZOO = {
    "env/cartpole": "env: {id: CartPole-v1}\neval: {target_return: 475}",
    "env/pendulum": "env: {id: Pendulum-v1, n_envs: 1}",
    "preset/cartpole_ppo": "policy: {gamma: 0.98, learning_rate: 1e-3}\nlearn: {batch_size: 256}",
    "preset/cartpole_dqn": "policy: {gamma: 0.97}\nrun: {max_steps: 50_000}",
    "preset/cartpole_dqn_constant": "policy: {gamma: 0.5}\nreward: {value: 2}",
}


@pytest.fixture
def policies(monkeypatch):
    """A registry of two fake policies, in the place of the real one."""
    monkeypatch.setattr(registry, "_REGISTRIES", {"reward": registry.registry_of("reward")})
    fake = registry.Registry("policy", "tests.config.fakes")
    fake.register("ppo", fakes.OnPolicy)
    fake.register("dqn", fakes.OffPolicy)
    return fake


@pytest.fixture
def zoo(tmp_path, monkeypatch, policies):  # noqa: ARG001 - fake policies belong to it
    """A small zoo of its own."""
    for name, text in ZOO.items():
        path = tmp_path / "zoo" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sources, "ZOO", tmp_path / "zoo")
    return tmp_path / "zoo"
