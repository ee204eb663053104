"""Files that a config names, on nodes that do not have them."""

import json
from pathlib import Path

import pytest

from guerdon import entry
from guerdon.config import compose
from guerdon.config.errors import ConfigError
from guerdon.config.files import copied, named_files, with_copies
from guerdon.training.checkpoints import checkpoint_steps
from guerdon.training.run import train
from tests.processes import Program
from tests.training.running import config_of

OWN = f"""
{Path(__file__).with_name("environments.py").read_text()}

class Own(Faulty):
    def __init__(self, log):
        super().__init__()
        with open(log, "a") as file:
            print(Path(__file__).resolve(), Path.cwd(), sep="\\t", file=file)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an environment, and a config that names it."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("envs.py").write_text(OWN)
    Path("not_named.py").write_text("")
    settings = [{"log": str(tmp_path / "log.txt")}]
    env = {"id": "envs.py:Own", "n_envs": 4, "settings": settings, "backend": "base"}
    made = config_of("ppo", tmp_path / "run", env=env)
    Path("config.yaml").write_text(json.dumps(made))
    return folder


def test_only_the_files_that_a_config_names_are_copied(here):
    config = compose("config.yaml")
    files = named_files(config)
    with copied(files) as folder:
        assert [path.name for path in Path(folder).rglob("*.*")] == ["envs.py"]
        (name,) = files.values()
        assert (Path(folder) / name).read_text() == OWN
        moved = with_copies(config, files)
    assert files.keys() == {str(here / "envs.py")}
    assert moved.env.id == f"{name}:Own"
    assert moved.env.settings == config.env.settings
    assert with_copies(config, {}) == config
    assert not Path(folder).exists()


def test_of_a_folder_with_code_the_code_is_copied(here):
    package = here / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("")
    (here / "data.bin").write_bytes(b"x")
    data = here / "demonstrations"
    data.mkdir()
    (data / "data.bin").write_bytes(b"x")
    files = {str(here): "a/own", str(data): "b/demonstrations"}
    with copied(files) as folder:
        found = {str(each.relative_to(folder)) for each in Path(folder).rglob("*.*")}
    names = ("envs.py", "not_named.py", "package/__init__.py", "package/part.py")
    assert found == {*(f"a/own/{name}" for name in names), "b/demonstrations/data.bin"}


@pytest.mark.parametrize("learners", [0, 1])
def test_workers_of_a_cluster_find_the_files(ray, here, tmp_path, learners):
    address = ray.get_runtime_context().gcs_address
    options = ["runtime=ray", "runtime.num_collectors=2", f"runtime.num_learners={learners}"]
    with Program(
        "-m", "guerdon", "train", "config.yaml", *options, f"runtime.address={address}",
    ) as process:  # fmt: skip
        output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] >= 256
    lines = (tmp_path / "log.txt").read_text().splitlines()
    found = {tuple(map(Path, line.split("\t"))) for line in lines}
    mine = {(here / "envs.py", here)}
    others = found - mine
    assert mine < found  # for evaluations
    assert len(others) == 1
    for file, folder in others:
        assert file.name == "envs.py"
        assert file.is_relative_to(folder)
        assert "working_dir_files" in folder.parts


@pytest.mark.usefixtures("ray", "here")
@pytest.mark.parametrize("learners", [0, 1])
def test_code_that_another_config_names_is_refused_in_the_learner(tmp_path, learners):
    runtime = {"runtime": {"type": "ray", "num_learners": learners}}
    train("config.yaml", "run.max_steps=64", display="none")
    path = tmp_path / "run" / "config.yaml"
    Path("other.py").write_text(OWN)
    path.write_text(path.read_text().replace("envs.py", "other.py"))
    options = {**runtime, "run": {"dir": str(tmp_path / "new")}, "display": "none"}
    with pytest.raises(ConfigError, match="was not made by this user"):
        entry.train(str(path.parent), **options)
    assert not (tmp_path / "new").exists()
    entry.train(str(path.parent), **options, trust=True)
    assert (tmp_path / "new" / "summary.json").exists()
