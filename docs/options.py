"""Write ``docs/options.md``: all options, from the docstrings of the configuration's fields.

python docs/options.py
"""

from pathlib import Path

from guerdon.config.options import Option, options
from guerdon.config.registry import registry_of

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Options

Every option of a run, for the command line (`policy.gamma=0.98`), config files and `guerdon.train`.
`guerdon explain KEY` shows an option, or a section. Types include the limits that are checked; a
range after *usually* is common practice. Written by `python docs/options.py`.
"""
TITLES = {
    "seed": "Seed and imports",
    "env": "Environments",
    "policy": "Policies",
    "reward": "Rewards",
    "collect": "Collecting",
    "learn": "Learning",
    "eval": "Evaluation",
    "run": "Run",
}


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    found = [option for option in options() if "section" not in option.type]
    names = {kind: tuple(registry_of(kind).names()) for kind in ("policy", "reward")}
    for section, title in TITLES.items():
        keys = ("seed", "imports") if section == "seed" else (section,)
        rows = [option for option in found if option.key.partition(".")[0] in keys]
        rows = [row for row in rows if row.key not in ("policy", "reward.terms")]
        parts.append(f"\n## {title}\n\n")
        owned = section in names
        if section == "reward":
            parts.append(
                "The options of a single term are flat: `reward=gail reward.form=balanced`. Those "
                "of several terms are under their names: `reward.terms.gail.form=balanced`.\n\n"
            )
        heads = ["option", *(["of"] if owned else []), "type", "default", "meaning"]
        parts.append(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n")
        rows = sorted(rows, key=lambda row: row.key) if owned else rows
        parts.extend(line(row, names.get(section)) for row in rows)
    return "".join(parts)


def line(option: Option, names: tuple[str, ...] | None) -> str:
    """Return a row of a table; its second column names policies or rewards, unless all have it."""
    cells = [f"`{option.key}`", option.type, option.default, option.meaning]
    if names is not None:
        everyone = option.owners in ((), names)
        cells.insert(1, "all" if everyone else ", ".join(option.owners))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
