"""A run on a cluster of two nodes, the second of which disappears: see `test_faults.py`."""

import re
import sys
from pathlib import Path

import guerdon
import guerdon.parallel.cluster
from guerdon.training.callback import Callback


class LoseNode(Callback):
    """Kills a node, adds another one if wanted, and stops when a collector is back or named."""

    def __init__(self, cluster, node, replaced):
        self.cluster, self.node, self.replaced = cluster, node, replaced
        self.iterations = 0

    def on_iteration(self, run):
        self.iterations += 1
        if self.iterations == 3:
            self.cluster.remove_node(self.node, allow_graceful=False)
            if self.replaced:
                self.cluster.add_node(num_cpus=2)
        if self.iterations > 3:
            journal = (run.path / "log" / "coordinator" / "coordinator.txt").read_text()
            log = (run.path / "log.txt").read_text()
            if re.search(r"rollout [01]\.[2-9]\.", journal) or "waiting for collector" in log:
                run.stop()


def main(folder: Path, mode: str, then: str) -> None:
    from ray.cluster_utils import Cluster

    alone = then == "alone"  # the only collector is on the node
    head = {"num_cpus": 0 if alone else 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    node = cluster.add_node(num_cpus=2)
    guerdon.parallel.cluster.REPORT = 2.0
    try:
        guerdon.train(
            "cartpole_ppo", "eval.episodes=1", "eval.every=1_000_000", "run.max_steps=1_000_000",
            "runtime=ray", f"runtime.num_collectors={2 - alone}", "runtime.cpus_per_collector=2",
            f"runtime.address={cluster.address}", f"runtime.mode={mode}", "runtime.timeout=30",
            f"runtime.wait_seconds={60 if then == 'replaced' else 20}", run={"dir": str(folder)},
            callback=LoseNode(cluster, node, then == "replaced"), display="none",
        )  # fmt: skip
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
