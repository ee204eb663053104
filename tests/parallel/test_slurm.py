"""The script for Slurm, on a Slurm of two nodes: namespaces of this machine, for root."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """\
ClusterName=test
SlurmctldHost=node-1
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
StateSaveLocation=/run/state
SlurmdSpoolDir=/run/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=node-[1-2] CPUs=4
PartitionName=all Nodes=ALL Default=YES
"""

# What is mounted and started here ends with the first process.
CLUSTER = r"""
set -e
mount --bind hosts /etc/hosts
mount -t tmpfs none /run
mkdir -m 755 /run/munge /run/state /run/node-1 /run/node-2
(umask 77; head -c 64 /dev/urandom > /run/key)
munged --key-file=/run/key --seed-file=/run/seed --log-file=/run/munge/log --origin=127.0.0.1
for i in 1 2; do
    ip netns add node-$i
    ip -n node-$i link set lo up
done
ip link add v1 netns node-1 type veth peer name v2 netns node-2
for i in 1 2; do
    ip -n node-$i address add 10.9.0.$i/24 dev v$i
    ip -n node-$i link set v$i up
done
node() {
    nsenter --net=/run/netns/node-$1 \
        unshare --uts --mount --pid --fork --mount-proc bash node $1
}
node 2 &
node 1
"""

NODE = """\
set -e
hostname node-$1
mkdir -p /tmp/ray
mount -t tmpfs none /tmp/ray
mount -t tmpfs none /dev/shm
slurmd
[ $1 = 1 ] || { sleep infinity & wait; }
slurmctld
timeout 30 bash -c 'until [ "$(sinfo -h -t idle -o %D)" = 2 ]; do sleep 0.2; done'
bash commands
"""

SPACES = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
NEEDED = ("unshare", "nsenter", "ip", "munged", "slurmctld", "slurmd", "sbatch", "srun", "pkill")


@pytest.fixture
def slurm(tmp_path):
    """Runs commands on the first node; returns what they write."""
    if os.geteuid() or not all(map(shutil.which, NEEDED)):
        pytest.skip("a Slurm here needs root, slurmctld, slurmd, slurm-client, munge and iproute2")
    if subprocess.run([*SPACES, "true"], capture_output=True, check=False).returncode:
        pytest.skip("there can be no namespaces here")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(commands):
        texts = {
            "slurm.conf": CONFIG.format(folder=tmp_path),
            "hosts": "127.0.0.1 localhost\n10.9.0.1 node-1\n10.9.0.2 node-2\n",
            "cluster": CLUSTER,
            "node": NODE,
            "commands": f"set -e\n{commands}",
        }
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        found = subprocess.run(
            [*SPACES, "bash", "cluster"], cwd=tmp_path, capture_output=True, text=True,
            check=False, timeout=200,
            env={**os.environ, "PATH": path, "SLURM_CONF": str(tmp_path / "slurm.conf")},
        )  # fmt: skip
        job = next(tmp_path.glob("*-1.txt"), None)
        assert found.returncode == 0, found.stderr + (job.read_text() if job else "")
        return found.stdout

    return run


TRAIN = """\
guerdon train cartpole_ppo runtime=ray runtime.num_collectors={collectors} \
    run.max_steps={steps} eval.episodes=2 run.dir=run --platform slurm
"""
STOP = """
until [ -s run/metrics.jsonl ] || [ -z "$(squeue -h)" ]; do sleep 0.5; done
scancel --signal=INT 1"""
END = """
until [ -z "$(squeue -h)" ]; do sleep 0.5; done
scontrol show job 1 | grep -o JobState=.*
srun --nodes=2 --ntasks-per-node=1 ps -e -o comm=
"""
SLURM = {"slurmctld", "slurmscriptd", "slurmd", "slurmstepd", "srun"}


def nothing_left(lines):
    return {*map(str.strip, lines)} <= {*SLURM, "bash", "sleep", "ps"}


@pytest.mark.slow
def test_a_job_trains(slurm, tmp_path):
    output = slurm(TRAIN.format(collectors=1, steps=2000) + "sbatch guerdon.sbatch" + END)
    first, submitted, state, *left = output.splitlines()
    assert first == "submit with: sbatch guerdon.sbatch"
    assert submitted == "Submitted batch job 1"
    assert "COMPLETED" in state, (tmp_path / "cartpole_ppo-1.txt").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] >= 2000
    assert nothing_left(left), left


@pytest.mark.slow
def test_a_signal_stops_a_job_on_two_nodes(slurm, tmp_path):
    """As Slurm sends it before the time limit."""
    submit = "sbatch --nodes=2 --cpus-per-task=3 guerdon.sbatch"
    train = TRAIN.format(collectors=4, steps=10**9)
    output = slurm(train + submit + STOP + END)
    _, _, state, *left = output.splitlines()
    written = (tmp_path / "cartpole_ppo-1.txt").read_text()
    assert "FAILED" in state, written
    assert "4 collectors on 2 nodes" in written
    assert "Command failed with return code 130" in written
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stop_reason"] == "interrupted"
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()
    assert nothing_left(left), left
