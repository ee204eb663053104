"""Jobs that train on a cluster: a script for Slurm, a RayJob for Kubernetes (KubeRay)."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from guerdon.config import GuerdonConfig
from guerdon.data.files import atomic_file

FILES = {"slurm": "guerdon.sbatch", "k8s": "guerdon.rayjob.yaml"}
SUBMIT = {"slurm": "sbatch", "k8s": "kubectl create -f"}
IMAGE = "guerdon"
"""Name of the container image, which needs guerdon[ray] and the files that the config names."""
_MEMORY = "4Gi"  # of each container

_SLURM = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
{hosts}#SBATCH --output=%x-%j.txt

# One task on each node: Ray starts on all of them, and the command runs on the first.
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(getent ahostsv4 "$head" | awk 'NR == 1 {{ print $1 }}')
port=$((20000 + SLURM_JOB_ID % 10000))
srun --kill-on-bad-exit=1 ray symmetric-run --address "$address:$port" \\
    --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus "$SLURM_CPUS_PER_TASK" \\
    -- {command}
"""


def command_of(arguments: Sequence[str]) -> str:
    """Return the command that trains on the cluster that it is started in."""
    added = [
        each
        for each in ("runtime=ray", "runtime.address=auto")
        if not any(given.startswith(each.partition("=")[0] + "=") for given in arguments)
    ]
    return shlex.join(["guerdon", "train", *arguments, *added])


def slurm_script(config: GuerdonConfig, arguments: Sequence[str], hosts: Sequence[str] = ()) -> str:
    """Return a script for ``sbatch``.

    Args:
        config: The config of the arguments.
        arguments: Arguments of ``guerdon train``.
        hosts: Nodes to run on, if they are chosen here.
    """
    nodes = len(hosts) or 1
    return _SLURM.format(
        name=config.run.name,
        nodes=nodes,
        cpus=-(-_cpus(config) // nodes) + 1,  # and one for the learner
        hosts=f"#SBATCH --nodelist={','.join(hosts)}\n" if hosts else "",
        command=command_of(arguments),
    )


def ray_job(config: GuerdonConfig, arguments: Sequence[str]) -> dict[str, Any]:
    """Return a RayJob: a head with the learner, and a pod for each worker."""
    name = "".join(c if c.isalnum() else "-" for c in config.run.name.lower()).strip("-")
    section = config.runtime
    groups = {"collector": (section.num_collectors, section.cpus_per_collector)}
    if section.num_evaluators:
        groups["evaluator"] = section.num_evaluators, 1.0
    workers = [
        {
            "groupName": f"{role}s",
            "replicas": number,
            "minReplicas": number,
            "maxReplicas": number,
            "rayStartParams": {},
            "template": _pod(role, cpus),
        }
        for role, (number, cpus) in groups.items()
    ]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"generateName": f"{name or 'guerdon'}-"},
        "spec": {
            "entrypoint": command_of(arguments),
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "headGroupSpec": {
                    # Workers are placed on the other pods.
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod("head", 2),
                },
                "workerGroupSpecs": workers,
            },
        },
    }


def _pod(name: str, cpus: float) -> dict[str, Any]:
    amount = {"cpu": f"{cpus:g}", "memory": _MEMORY}
    container = {
        "name": name,
        "image": IMAGE,
        "env": [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "resources": {"requests": amount, "limits": amount},
    }
    return {"spec": {"containers": [container]}}


def _cpus(config: GuerdonConfig) -> int:
    section = config.runtime
    wanted = section.num_collectors * section.cpus_per_collector + section.num_evaluators
    return -int(-wanted // 1)


def write_job(
    platform: str, config: GuerdonConfig, arguments: Sequence[str], hosts: Sequence[str] = ()
) -> str:
    """Write the job of a platform to the current folder; return how to submit it."""
    path = Path(FILES[platform])
    if hosts and platform != "slurm":
        raise ValueError("hosts are chosen for -p slurm alone: leave -ch, -lh and -ah out")
    if platform == "slurm":
        text = slurm_script(config, arguments, hosts)
    else:
        text = yaml.safe_dump(ray_job(config, arguments), sort_keys=False, width=1000)
    with atomic_file(path) as file:
        file.write(text.encode())
    return f"{SUBMIT[platform]} {path}"
