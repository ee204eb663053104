"""Every fenced block of code in README.md and docs/ does what a reader would have it do.

All blocks of one file run in order in one fresh process, in an empty folder: Python shares one
namespace, prompts (``pycon``) are doctests, shell lines are run. ``make`` and ``pip install`` are
only checked, since the tests run inside the one and need what the other made. Data is parsed. A
fence whose language is followed by a file name (``python my_env.py``) is that file, which later
blocks use.
"""

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.requirements import InvalidRequirement, Requirement

from tests.processes import Program, write_command

ROOT = Path(__file__).parents[2]
PYTHON, SHELL = {"python"}, {"bash", "sh", "console"}
IGNORED = {"text", "mermaid", "csv", "ini", "xml", "diff", "bibtex"}
PARSERS = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
LANGUAGES = {*PYTHON, "pycon", *SHELL, *PARSERS, *IGNORED}
MINUTES = 10


class Block(NamedTuple):
    """A fence: its file, the line of its first code, its language and what is in it."""

    path: Path
    line: int
    language: str
    code: str
    closed: bool
    file: str = ""

    @property
    def name(self) -> str:
        """Where it is: ``docs/data.md:12-python``."""
        inside = self.path.is_relative_to(ROOT)
        where = self.path.relative_to(ROOT) if inside else self.path.name
        return f"{where}:{self.line}-{self.language}"


def blocks(path: Path) -> list[Block]:
    """The fences of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = []
    for token in MarkdownIt().parse(text):
        if token.type == "fence":
            start, end = token.map
            language, _, file = token.info.partition(" ")
            closed = end - start > 1 and lines[end - 1].lstrip("> ").startswith(token.markup)
            found.append(Block(path, start + 2, language, token.content, closed, file))
    return found


def documents(root: Path) -> list[Path]:
    """README.md and all Markdown under docs/, as far as they are there."""
    return [
        path for path in (root / "README.md", *sorted(root.glob("docs/**/*.md"))) if path.is_file()
    ]


# --- in the process that runs the blocks of one file


def run_block(block: Block, namespace: dict[str, Any]) -> None:
    """Raises whatever is wrong with a block."""
    if not block.closed:
        raise AssertionError("this fence is never closed")
    if block.language not in LANGUAGES:
        kind = f"the language {block.language!r}" if block.language else "no language"
        raise AssertionError(f"this fence has {kind}; known are: {', '.join(sorted(LANGUAGES))}")
    if block.file:
        Path(block.file).write_text(block.code)
    if block.file and block.language in PYTHON:
        compile(block.code, str(block.path), "exec")
    elif block.language in PYTHON:
        # Blank lines in front: a traceback then shows the lines of the document.
        source = "\n" * (block.line - 1) + block.code
        exec(compile(source, str(block.path), "exec"), namespace)
    elif block.language == "pycon":
        run_prompts(block, namespace)
    elif block.language in SHELL:
        run_shell(block)
    elif block.language in PARSERS:
        PARSERS[block.language](block.code)


def run_prompts(block: Block, namespace: dict[str, Any]) -> None:
    """Compares what is printed character by character."""
    parser = doctest.DocTestParser()
    test = parser.get_doctest(block.code, {}, block.name, str(block.path), block.line - 1)
    if not test.examples:
        raise AssertionError("there is no >>> in it")
    test.globs = namespace
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=0)
    runner.run(test, out=output.append, clear_globs=False)
    if output:
        raise AssertionError("".join(output))


def commands(block: Block) -> Iterator[str]:
    """The commands of a shell block; in a console block, only what stands after a prompt."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language == "console" and any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            yield from re.split(r"\s+&&\s+", line.strip())


def run_shell(block: Block) -> None:
    """Runs what can be run, in one shell, and checks the rest."""
    script = []
    for command in commands(block):
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            check_make(words[1:])
        elif re.search(r"(^|/)pip3? install ", " ".join(words).replace(" -m pip ", " -m /pip ")):
            check_pip(words[words.index("install") + 1 :])
        else:
            failed = shlex.quote(f"this command failed: {command}")
            script.append(f"{{ {command}\n}} || {{ echo {failed} >&2; exit 1; }}")
    call(["bash", "-o", "pipefail", "-c", "\n".join(script)])


def check_make(arguments: list[str]) -> None:
    """Asks make what it would do, with none of what a make around these tests left behind."""
    inherited = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    env = {name: value for name, value in os.environ.items() if name not in inherited}
    output = call(["make", "--dry-run", "--always-make", *arguments], env=env, cwd=ROOT)
    if "Nothing to be done" in output:  # a file of that name, but no rule
        raise AssertionError(output)


def check_pip(arguments: list[str]) -> None:
    """Checks the syntax of requirements, that extras exist, and that files are there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    previous = ""
    for word in arguments:
        if previous in ("-r", "--requirement", "-c", "--constraint"):
            if not (ROOT / word).is_file():
                raise AssertionError(f"there is no file {word}")
        elif not word.startswith("-") and "://" not in word:
            check_requirement(re.sub(r"^\.(?=\[|$)", project["name"], word), project)
        previous = word


def check_requirement(text: str, project: dict[str, Any]) -> None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise AssertionError(f"pip would not understand {text!r}: {error}") from None
    unknown = requirement.extras - project["optional-dependencies"].keys()
    if requirement.name == project["name"] and unknown:
        raise AssertionError(f"{project['name']} has no extra {', '.join(sorted(unknown))}")


def call(command: list[str], **options: Any) -> str:
    """What a command prints; an error if it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        stdin=subprocess.DEVNULL,
        **options,
    )
    if done.returncode:
        raise AssertionError(
            f"exit status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def main(path: str, results: str, commands: str) -> None:
    """Runs all blocks of a file; for each, writes as a line of JSON what was wrong, or nothing.

    Args:
        path: The file.
        results: Where to write to.
        commands: A folder with commands for the shell.
    """
    path_of_shells = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    if shutil.which("guerdon", path=os.pathsep.join(path_of_shells)):
        path_of_shells.insert(0, commands)  # the same, but it starts at once
    os.environ["PATH"] = os.pathsep.join(path_of_shells)
    os.environ["MINARI_DATASETS_PATH"] = str(Path.cwd() / "minari")  # not the user's
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with Path(results).open("w", encoding="utf-8") as file:
        for block in blocks(Path(path)):
            try:
                run_block(block, namespace)
                error = ""
            except (Exception, SystemExit):
                error = traceback.format_exc()
            file.write(json.dumps(error) + "\n")
            file.flush()


# --- in the process of the tests

RUNNER = "import runpy, sys; runpy.run_path(sys.argv[1])['main'](*sys.argv[2:])"


def run_file(path: Path, folder: Path) -> list[str]:
    """What is wrong with each block of a file; empty where nothing is."""
    results = folder.with_name(f"{folder.name}-results.jsonl")
    commands = folder.with_name(f"{folder.name}-bin")
    commands.mkdir()
    write_command(commands)
    with Program("-c", RUNNER, __file__, path, results, commands, cwd=folder) as process:
        _, said = process.communicate()
    errors = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    end = f"the process ended here with status {process.returncode}:\n{said[-3000:]}"
    return [*errors, *[end] * (len(blocks(path)) - len(errors))]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    known: dict[Path, list[str]] = {}

    def outcome(block: Block) -> str:
        if block.path not in known:
            known[block.path] = run_file(block.path, tmp_path_factory.mktemp(block.path.stem))
        return known[block.path][blocks(block.path).index(block)]

    return outcome


BLOCKS = [block for path in documents(ROOT) for block in blocks(path)]


@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_block(block, outcomes):
    error = outcomes(block)
    if error:
        pytest.fail(f"{block.name}\n{error}", pytrace=False)


# --- the runner itself


def outcome_of(tmp_path: Path, text: str) -> list[str]:
    path, folder = tmp_path / "page.md", tmp_path / "folder"
    path.write_text(text, encoding="utf-8")
    folder.mkdir()
    return run_file(path, folder)


def fence(language: str, code: str) -> str:
    return f"Some text.\n\n```{language}\n{code}\n```\n\n"


GOOD = [
    ("python", "import guerdon\nassert guerdon.__version__"),
    ("python title=example", "if __name__ == '__main__':\n    pass"),
    ("pycon", ">>> 1 + 1\n2\n>>> print('a  b')\na  b"),
    (
        "bash",
        "# a comment\nguerdon --version\npython -c 'print(1)' \\\n    > out.txt && test -s out.txt",
    ),
    ("bash", "mkdir part && cd part\ntest $(basename $PWD) = part\nexport X=1\ntest $X = 1"),
    ("sh", "make test\nmake PYTHON=python3.11 demo\nmake"),
    ("bash", "pip install guerdon\npip install 'guerdon[minari,ray]>=0.1' numpy"),
    ("bash", "python -m pip install -e '.[dev]'"),
    ("bash", ".venv/bin/pip install -c constraints.txt --editable ."),
    ("console", "$ guerdon --version\nguerdon 0.1.0"),
    ("json", '{"a": [1, 2]}'),
    ("toml", "[a]\nb = 1"),
    ("yaml", "a: {b: 1}\n---\nc: 2"),
    ("text", "anything }{"),
    ("mermaid", "graph TD"),
]

BAD = [
    ("python", "assert 1 == 2", "AssertionError"),
    ("python", "x = 1\n\nundefined_name", "NameError"),
    ("python", "raise SystemExit(0)", "SystemExit"),
    ("python", "this is no Python", "SyntaxError"),
    ("pycon", ">>> 1 + 1\n3", "Expected"),
    ("pycon", ">>> print('a  b')\na b", "Expected"),
    ("pycon", "1 + 1", "no >>>"),
    ("bash", "false", "this command failed: false"),
    ("bash", "true\nfalse && true\ntrue", "this command failed: false"),
    ("bash", "false | true", "this command failed"),
    ("bash", "guerdon no-such-verb", "this command failed: guerdon no-such-verb"),
    ("console", "$ false\nsome output", "this command failed: false"),
    ("bash", "make no-such-target", "no-such-target"),
    ("bash", "true && make docs", "Nothing to be done"),
    ("bash", "pip install guerdon[no-such-extra]", "no extra no-such-extra"),
    ("bash", "python -m pip install -e .[dev,nothing]", "no extra nothing"),
    ("bash", "pip install guerdon==", "would not understand"),
    ("bash", "pip install -r no-such-file.txt", "no file no-such-file.txt"),
    ("json", "{a: 1}", "JSONDecodeError"),
    ("toml", "a = ", "TOMLDecodeError"),
    ("yaml", "a: [1", "yaml"),
    ("", "anything", "no language"),
    ("klingon", "nuqneH", "the language 'klingon'"),
]


def test_good_blocks_pass(tmp_path):
    errors = outcome_of(tmp_path, "".join(fence(*item) for item in GOOD))
    assert errors == [""] * len(GOOD)


def test_bad_blocks_fail_and_say_why(tmp_path):
    errors = outcome_of(tmp_path, "".join(fence(language, code) for language, code, _ in BAD))
    assert len(errors) == len(BAD)
    for (language, code, why), error in zip(BAD, errors, strict=True):
        assert error, f"{language}: {code} should fail"
        assert why in error


def test_a_traceback_shows_the_line_of_the_document(tmp_path):
    (error,) = outcome_of(tmp_path, fence("python", "x = 1\n\nundefined_name"))
    assert 'page.md", line 6, in <module>\n    undefined_name' in error


def test_blocks_share_a_namespace_and_a_folder_in_order(tmp_path):
    text = fence("python", "x = 40\nopen('left.txt', 'w').write('here')")
    text += fence("bash", "test $(cat left.txt) = here\necho 2 > right.txt")
    text += fence("pycon", ">>> x + int(open('right.txt').read())\n42\n>>> y = 1")
    text += fence("python", "assert y == 1")
    assert outcome_of(tmp_path, text) == [""] * 4
    assert (tmp_path / "folder" / "left.txt").read_text() == "here"


def test_a_failing_block_does_not_hide_the_others(tmp_path):
    text = fence("python", "x = 1\nundefined_name") + fence("python", "assert x == 1")
    errors = outcome_of(tmp_path, text)
    assert [bool(error) for error in errors] == [True, False]


def test_a_block_that_ends_the_process_fails_with_all_after_it(tmp_path):
    text = fence("python", "x = 1") + fence("python", "import os\nos._exit(3)") + fence("text", "x")
    errors = outcome_of(tmp_path, text)
    assert errors[0] == ""
    assert all("ended here with status 3" in error for error in errors[1:])


def test_fences_in_lists_quotes_and_tildes_are_found_and_open_ones_fail(tmp_path):
    text = "1. item\n\n   ```python\n   x = 1\n   ```\n\n> ```python\n> assert x == 1\n> ```\n\n"
    text += "~~~~python\ny = '''\n```\n'''\n~~~~\n\n```python\nassert y"
    errors = outcome_of(tmp_path, text)
    assert errors[:3] == ["", "", ""]
    assert "never closed" in errors[3]


def test_there_may_be_no_documents(tmp_path):
    assert documents(tmp_path) == []
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    assert documents(tmp_path) == []
    page = tmp_path / "docs" / "deep" / "page.md"
    page.write_text("No code.", encoding="utf-8")
    assert documents(tmp_path) == [page]
    assert outcome_of(tmp_path, "No code.") == []
