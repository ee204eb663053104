"""``docs/options.md`` is what ``python docs/options.py`` writes."""

import re
from pathlib import Path

from guerdon.config.options import options
from tests.processes import Program

DOCS = Path(__file__).parents[2] / "docs"
PRINT = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['page']())"


def test_the_page_of_options_is_current():
    with Program("-c", PRINT, DOCS / "options.py") as process:  # which has no policies of tests
        page, errors = process.communicate()
    assert process.returncode == 0, errors
    assert (DOCS / "options.md").read_text(encoding="utf-8") == page, "python docs/options.py"


def test_every_option_has_a_meaning_and_a_type_in_words():
    for option in options():
        assert option.meaning, option.key
        assert "typing" not in option.type, option
        assert "<" not in option.type.replace("< ", ""), option


def number(text):
    return float(text.replace(",", ""))


def test_usual_ranges_are_valid_and_contain_the_default():
    found = 0
    for option in options():
        for none, low, high in re.findall(
            r"(else )?usually ([\d.,e-]*\d) to ([\d.,e-]*\d)", option.meaning
        ):
            found += 1
            usual = (number(low), number(high))
            assert usual[0] < usual[1], option
            for sign, limit in re.findall(r"([≥>≤<]) ([\d.,]+)", option.type):
                inside = usual[0] >= number(limit) if sign in "≥>" else usual[1] <= number(limit)
                assert inside, option
            alone = re.fullmatch(r"[\d.]+", option.default)  # without other defaults of policies
            if alone and not none:
                assert usual[0] <= number(option.default) <= usual[1], option
    assert found > 90
