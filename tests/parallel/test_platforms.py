"""Jobs for clusters."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys

import pytest
import yaml

from guerdon.config import compose
from guerdon.parallel.platforms import ray_job, slurm_script
from tests.processes import Program
from tests.training.running import config_of

ARGUMENTS = ["cartpole_ppo", "runtime=ray", "runtime.num_collectors=4", "run.dir=a folder"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(here, *arguments):
    """Run guerdon; return the job that it wrote, and its output."""
    with Program("-m", "guerdon", *arguments) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    (file,) = here.glob("guerdon.*")
    assert output.strip().endswith(file.name)
    return file.read_text(), output


def test_slurm_script_of_an_entry(here):
    text, output = written(here, "train", *ARGUMENTS, "--platform", "slurm")
    assert output == "submit with: sbatch guerdon.sbatch\n"
    assert "#SBATCH --nodes=1\n" in text
    assert "#SBATCH --cpus-per-task=5\n" in text  # four collectors and the learner
    assert "'run.dir=a folder' runtime.address=auto\n" in text


def test_the_documented_flags_choose_nodes(here):
    config = config_of("ppo", here / "run", runtime={"num_collectors": 3})
    config["runtime"]["type"] = "ray"
    (here / "config.yaml").write_text(json.dumps(config))
    flags = ["-m", "parallel", "-p", "slurm", "-c", "config.yaml", "-s", "0"]
    text, _ = written(here, *flags, "--actor_host", "node-2", "--learner_host", "node-1")
    assert "#SBATCH --nodelist=node-1,node-2\n" in text
    assert "#SBATCH --nodes=2\n" in text
    assert "guerdon train config.yaml runtime=ray seed=0 runtime.address=auto\n" in text


def stand_in(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


RAY = f"""#!{sys.executable}
import os, subprocess, sys
del os.environ["RAY_AUTH_TOKEN"]  # the cluster that runs has its own
split = sys.argv.index("--")
assert sys.argv[1] == "symmetric-run", sys.argv
options = dict(zip(sys.argv[2:split:2], sys.argv[3:split:2]))
assert options.keys() == {{"--address", "--min-nodes", "--num-cpus"}}, options
print("OPTIONS", options["--address"], options["--min-nodes"], options["--num-cpus"])
command = sys.argv[split + 1 :]
assert command[0] == "guerdon"
sys.exit(subprocess.run([sys.executable, "-m", *command]).returncode)
"""


def test_the_slurm_script_trains_on_a_cluster_that_runs_already(ray, here):
    """With stand-ins for Slurm's programs, and for Ray's that starts a cluster."""
    case = config_of("ppo", here / "run", env={"id": "guerdon/Identity-v0", "n_envs": 4})
    (here / "config.yaml").write_text(json.dumps(case))
    address = ray.get_runtime_context().gcs_address
    arguments = ["config.yaml", "runtime=ray", "runtime.num_collectors=2"]
    arguments.append(f"runtime.address={address}")
    (here / "job").write_text(slurm_script(compose(*_split(arguments)), arguments))
    stand_in(here, "srun", '#!/bin/bash\nshift\nexec "$@"\n')
    stand_in(here, "scontrol", "#!/bin/bash\necho localhost\n")
    stand_in(here, "ray", RAY)
    given = {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    path = f"{here}:{os.environ['PATH']}"
    found = subprocess.run(
        [shutil.which("bash"), "job"], capture_output=True, text=True, check=False,
        env={**os.environ, **given, "SLURM_CPUS_PER_TASK": "3", "PATH": path},
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(r"OPTIONS 127\.0\.\d\.1:20007 1 3", found.stdout)
    assert json.loads((here / "run" / "summary.json").read_text())["env_steps"] >= 256
    assert ray.is_initialized()
    assert ray.cluster_resources()["CPU"] == 4.0


def _split(arguments):
    return arguments[0], arguments[1:]


def test_ray_job_for_kubernetes(here):
    text, output = written(here, "train", *ARGUMENTS, "--platform", "k8s")
    assert output == "submit with: kubectl create -f guerdon.rayjob.yaml\n"
    job = yaml.safe_load(text)
    assert job == ray_job(compose(*_split(ARGUMENTS)), ARGUMENTS)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    # Names in Kubernetes are of lower-case letters, digits and hyphens.
    assert re.fullmatch(r"[a-z0-9-]+", job["metadata"]["generateName"])
    spec = job["spec"]
    assert spec["entrypoint"].startswith("guerdon train cartpole_ppo runtime=ray")
    assert spec["entrypoint"].endswith("runtime.address=auto")
    assert spec["shutdownAfterJobFinishes"] is True
    cluster = spec["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 4
    for each in (cluster["headGroupSpec"], group):
        assert all(isinstance(value, str) for value in each["rayStartParams"].values())
        (container,) = each["template"]["spec"]["containers"]
        assert container["image"]
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}


def test_learners_reserve_gpus():
    arguments = [*ARGUMENTS, "runtime.num_learners=2", "run.device=cuda", "run.threads=3"]
    config = compose(*_split(arguments))
    text = slurm_script(config, arguments)
    assert "#SBATCH --cpus-per-task=11\n#SBATCH --gpus-per-node=2\n" in text
    learner, collector = ray_job(config, arguments)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert learner["replicas"] == 2
    limits = [
        each["template"]["spec"]["containers"][0]["resources"]["limits"]
        for each in (learner, collector)
    ]
    assert (limits[0]["cpu"], limits[0]["nvidia.com/gpu"]) == ("3", "1")
    assert "nvidia.com/gpu" not in limits[1]


def test_hosts_are_for_slurm(here):
    (here / "config.yaml").write_text(json.dumps(config_of("ppo", here / "run")))
    for platform in ("k8s", "local"):
        with Program(
            "-m", "guerdon", "-m", "parallel", "-p", platform, "-c", "config.yaml", "-ah", "node",
        ) as process:  # fmt: skip
            _, errors = process.communicate()
        assert process.returncode == 2
        assert "leave" in errors
        assert "-ah" in errors
