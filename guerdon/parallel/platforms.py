"""Jobs that train on a cluster: a script for Slurm, a RayJob for Kubernetes (KubeRay)."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from guerdon.config import GuerdonConfig
from guerdon.data.files import atomic_file
from guerdon.training.parts import find_device

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
{more}#SBATCH --output=%x-%j.txt
# One Ray runs on a node, and `ray stop` stops all of them.
#SBATCH --exclusive
# Stops the run two minutes before the time limit.
#SBATCH --signal=INT@120

# One task on each node: Ray starts on all of them, and the command runs on the first.
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0
# Others cannot join; and a token that `ray.init` left at home would keep the nodes apart.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(tr -d - < /proc/sys/kernel/random/uuid)
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(getent ahostsv4 "$head" | awk 'NR == 1 {{ print $1 }}')
port=$((20000 + SLURM_JOB_ID % 10000))
# A signal stops the run, which saves; then Ray stops.
task='
"$@" & trap stop INT TERM
stop() {{ trap "" INT TERM; [ "$SLURM_PROCID" != 0 ] || pkill -HUP -P $!; }}
while kill -0 $! 2>/dev/null; do wait $!; done'
srun --kill-on-bad-exit=1 bash -c "$task" - ray symmetric-run --address "$address:$port" \\
    --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus "$SLURM_CPUS_PER_TASK" \\
    -- {command}
"""


def resources(config: GuerdonConfig) -> dict[str, tuple[int, dict[str, float]]]:
    """Return the number of workers of each role that has some, and what each of them reserves."""
    section, device = config.runtime, config.run.device
    gpu = device.startswith("cuda") or (device == "auto" and find_device(device) == "cuda")
    learner = {"CPU": float(config.run.threads or 1)} | ({"GPU": 1.0} if gpu else {})
    found = {
        "learner": (section.num_learners, learner),
        "collector": (section.num_collectors, {"CPU": section.cpus_per_collector}),
        "reward": (section.num_reward_workers, {"CPU": 1.0}),
        "evaluator": (section.num_evaluators, {"CPU": 1.0}),
    }
    return {role: each for role, each in found.items() if each[0]}


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
    cpus, gpus = (
        -int(-sum(number * each.get(kind, 0.0) for number, each in resources(config).values()))
        for kind in ("CPU", "GPU")
    )
    more = f"#SBATCH --gpus-per-node={-(-gpus // nodes)}\n" if gpus else ""
    if hosts:
        more += f"#SBATCH --nodelist={','.join(hosts)}\n"
    return _SLURM.format(
        name=config.run.name,
        nodes=nodes,
        cpus=-(-cpus // nodes) + 1,  # and one for the process that starts the run
        more=more,
        command=command_of(arguments),
    )


def ray_job(config: GuerdonConfig, arguments: Sequence[str]) -> dict[str, Any]:
    """Return a RayJob: a head with the learner, and a pod for each worker."""
    name = "".join(c if c.isalnum() else "-" for c in config.run.name.lower()).strip("-")
    workers = [
        {
            "groupName": f"{role}s",
            "replicas": number,
            "minReplicas": number,
            "maxReplicas": number,
            "rayStartParams": {},
            "template": _pod(role, each["CPU"], each.get("GPU", 0.0)),
        }
        for role, (number, each) in resources(config).items()
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


def _pod(name: str, cpus: float, gpus: float = 0.0) -> dict[str, Any]:
    amount = {"cpu": f"{cpus:g}", "memory": _MEMORY}
    amount |= {"nvidia.com/gpu": f"{gpus:g}"} if gpus else {}
    container = {
        "name": name,
        "image": IMAGE,
        "env": [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "resources": {"requests": amount, "limits": amount},
    }
    return {"spec": {"containers": [container]}}


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
