"""Every row of the page of migration names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "migration.md").read_text()


def test_every_row_names_tests_that_exist():
    sources = {path.relative_to(TESTS).as_posix(): path.read_text() for path in TESTS.rglob("*.py")}
    rows = [line for line in PAGE.splitlines() if re.search(r"\| .*test_\w+.* \|$", line)]
    assert len(rows) > 60
    for row in rows:
        content = ""
        cell = row.rsplit("|", 2)[1]
        for file, name in re.findall(r"`(?:tests/)?(?:([\w/]+\.py)(?:::)?)?(test_\w+)?`", cell):
            if file:
                found = [text for path, text in sources.items() if f"/{path}".endswith(f"/{file}")]
                assert found, f"{file} in {row}"
                content = "".join(found)
            if name:
                assert f"def {name}(" in (content or "".join(sources.values())), row
