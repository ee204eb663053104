"""Train a policy: collect images, or learn from a classifier of them.

python examples/embodiment/train_embodied_agent.py --config-name maniskill_ppo_cnn KEY=VALUE
"""

from guerdon.compat.rlinf.main import train_embodied_agent

if __name__ == "__main__":
    train_embodied_agent()
