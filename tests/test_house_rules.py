"""Rules of the house that no linter here checks."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
UNPICKLE = "data/unpickle.py"
WORKER = "envs/worker.py"
DRAWING = "compat/di_engine/draws.py"
SHARED = {
    "random",
    "random.Random",
    "random.getstate",
    "random.setstate",
    "numpy.random.MT19937",
    "numpy.random.get_state",
    "numpy.random.set_state",
}
SEEDED = {"default_rng", "Generator", "SeedSequence", "PCG64", "BitGenerator"}
UNSAFE = {
    "cloudpickle.load",
    "cloudpickle.loads",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "torch.load",
}
BUILTINS = {"eval", "exec", "print"}
GLOBAL_SEEDS = {
    "torch.manual_seed",
    "torch.seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
}


class Names(ast.NodeVisitor):
    """Every name of a module that a file uses, in full, whatever it was imported as."""

    def __init__(self, source: str) -> None:
        self.aliases: dict[str, str] = {}
        self.found: list[tuple[str, ast.AST, ast.AST | None]] = []
        tree = ast.parse(source)
        self.parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._imports(node)
        self.visit(tree)

    def _imports(self, node: ast.Import | ast.ImportFrom) -> None:
        origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name = origin + alias.name
            if alias.asname or origin:
                self.aliases[alias.asname or alias.name] = name
            else:
                self.aliases[name.partition(".")[0]] = name.partition(".")[0]
            self.found.append((name, node, None))

    def _dotted(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id if node.id in BUILTINS else "")
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def visit_Name(self, node: ast.Name) -> None:
        self.found.append((self._dotted(node), node, self.parents.get(node)))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.found.append((self._dotted(node), node, self.parents.get(node)))
        self.generic_visit(node)


def offences(source: str, file: str = "some/file.py") -> list[str]:
    """What a file of the package does that it must not: ``line: name``."""
    return sorted(
        {
            f"{node.lineno}: {name}"
            for name, node, parent in Names(source).found
            if bad(name, node, parent, file)
        }
    )


def bad(name: str, node: ast.AST, parent: ast.AST | None, file: str) -> bool:
    """Whether one use of a name breaks a rule."""
    called = isinstance(parent, ast.Call) and parent.func is node
    if name in BUILTINS or name in ("rich.print", "builtins.print"):
        return called
    if name == "numpy.load":
        return called and any(
            word.arg == "allow_pickle" and not is_constant(word.value, False)
            for word in parent.keywords
        )
    if name == "torch.load" and file == UNPICKLE and called:
        return not any(
            word.arg == "weights_only" and is_constant(word.value, True) for word in parent.keywords
        )
    if name == "pickle.Unpickler" and file == UNPICKLE:
        return called  # it may be a base class, and its subclass restricts it
    if name.partition(".")[0] == "multiprocessing":
        return file != WORKER  # its pipes unpickle what they receive
    if name in SHARED and file == DRAWING:
        return False  # it puts back what others have
    if name in UNSAFE or name in GLOBAL_SEEDS:
        return True
    if name.startswith("numpy.random."):
        return name.split(".")[2] not in SEEDED
    return name == "random" or name.startswith("random.")


def is_constant(node: ast.AST, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


FILES = sorted((ROOT / "guerdon").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_package_keeps_the_rules(path):
    file = path.relative_to(ROOT / "guerdon").as_posix()
    assert offences(path.read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(file)",
        "import pickle as p\np.loads(data)",
        "from pickle import load\nload(file)",
        "from pickle import Unpickler as U\nU(file).load()",
        "from cloudpickle import loads\nloads(data)",
        "from multiprocessing.connection import Client\nClient(address).recv()",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import torch\nread = torch.load",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "eval('1')",
        "exec(code)",
        "print('x')",
        "from rich import print\nprint('x')",
        "import random",
        "import random as r\nr.random()",
        "from random import choice",
        "import numpy as np\nnp.random.seed(0)",
        "import numpy as np\nnp.random.rand(3)",
        "import numpy as np\nrng = np.random.RandomState(0)",
        "from numpy import random\nrandom.shuffle(x)",
        "from numpy.random import randint",
        "import torch\ntorch.manual_seed(0)",
        "from torch import manual_seed",
        "import torch\ntorch.cuda.manual_seed_all(0)",
    ],
)
def test_offences_are_found(source):
    assert offences(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()\nself.print()\nbuffer.load(path)\nrandom = 1\nx.random.seed(3)",
        "import pickle\npickle.dump(x, file)",
        "import numpy as np\nnp.random.default_rng(0)\nx: np.random.Generator",
        "import numpy as np\nnp.load(path)\nnp.load(path, allow_pickle=False)",
        "from numpy.random import Generator, SeedSequence\nSeedSequence(0)",
        "import torch\ngenerator = torch.Generator().manual_seed(0)",
        '"""print(x), eval(x), pickle.load(x)"""',
    ],
)
def test_what_is_allowed_is_not_found(source):
    assert offences(source) == []


def test_only_one_file_may_unpickle_and_only_with_restrictions():
    subclass = "import pickle\nclass Restricted(pickle.Unpickler):\n    pass"
    weights = "import torch\ntorch.load(path, weights_only=True)"
    for source in (subclass, weights):
        assert offences(source, UNPICKLE) == []
        assert offences(source) != []
    for source in (
        "import pickle\npickle.load(file)",
        "import pickle\npickle.Unpickler(file).load()",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=safe)",
        "import torch\nread = torch.load",
    ):
        assert offences(source, UNPICKLE) != []


def test_only_one_file_may_have_pipes_which_unpickle_and_they_lead_to_its_children_alone():
    pipes = "from multiprocessing import Pipe\nours, theirs = Pipe()\nours.recv()"
    assert offences(pipes, WORKER) == []
    assert offences(pipes) != []
    assert offences("import pickle\npickle.loads(data)", WORKER) != []
    text = (ROOT / "guerdon" / WORKER).read_text(encoding="utf-8")
    assert not {"Client", "Listener", "open"} & set(re.findall(r"\w+", text))


def test_only_one_file_may_lend_the_generators_that_all_share_and_it_draws_nothing():
    lending = "import random\nimport numpy as np\nrandom.setstate(np.random.get_state())"
    assert offences(lending, DRAWING) == []
    assert offences(lending) != []
    for source in ("import random\nrandom.random()", "import numpy as np\nnp.random.seed(0)"):
        assert offences(source, DRAWING) != []


# --- files for installation


INSTALL_FILES = [
    ROOT / "constraints.txt",
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    *sorted(
        path
        for folder in ("", "benchmarks/", "docs/")
        for path in ROOT.glob(f"{folder}requirements*.txt")
    ),
]
MACHINE_PATH = re.compile(r"(?<![\w.)}])/(work|root|home)/")
INDEX = re.compile(
    r"--(extra-)?index-url|--find-links|PIP_(EXTRA_)?INDEX_URL|PIP_FIND_LINKS|index-url\s*="
    r"|https?://\S*(pypi|pythonhosted|pytorch\.org|/simple|/whl|\.whl|conda|artifactory|nexus|mirror)",
    re.IGNORECASE,
)


def machine_lines(text: str) -> Iterator[str]:
    """Lines that hold a path or an address of one machine only."""
    return (line for line in text.splitlines() if MACHINE_PATH.search(line) or INDEX.search(line))


@pytest.mark.parametrize("path", INSTALL_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_installing_depends_on_no_machine(path):
    text = path.read_text(encoding="utf-8")
    assert list(machine_lines(text)) == []
    if path.suffix == ".txt":
        assert "://" not in text


@pytest.mark.parametrize(
    "line",
    [
        "torch @ file:///home/someone/wheels/torch.whl",
        "VENV ?= /home/someone/.venv",
        "cd /home/someone/project",
        "--index-url https://example.org/simple",
        "pip install --find-links wheels",
        "torch @ https://download.pytorch.org/whl/cpu/torch.whl",
        "url = 'https://pypi.org/project/guerdon'",
    ],
)
def test_machine_lines_are_found(line):
    assert list(machine_lines(line)) == [line]


def test_urls_of_the_project_are_no_machine_lines():
    assert list(machine_lines("Homepage = 'https://example.org/guerdon/work/home/'")) == []


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, version = re.fullmatch(r"([a-z0-9-]+)==([\w.]+)", line).groups()
            assert name not in pinned
            pinned[name] = version
    return pinned


def test_every_constraint_is_a_pin():
    assert pins()["torch"] == "2.13.0"


def test_every_dependency_is_pinned_to_a_version_it_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = pins()
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in map(Requirement, group):
            if requirement.name != project["name"]:
                assert requirement.specifier.contains(pinned[requirement.name]), requirement
