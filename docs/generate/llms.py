"""`llms.txt`: the site for coding assistants, as a list of pages and as one page."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
HEAD = """\
# Penstock

> A durable job queue for Python that starts as one SQLite file: no broker, no server, nothing lost
> when a process is killed. The same program runs on PostgreSQL. Python 3.11 or newer.

Start with [the summary](assistants/): the API on one page, with the mistakes that are made most.
"""
SECTION = re.compile(r"^  - (\w+):")
PAGE = re.compile(r"^ +- (?:([^:]+): )?(\S+\.md)$")


def listing() -> str:
    """Return the list of all pages in the order of the menu, each with its first sentence."""
    menu = (DOCS.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    parts = [HEAD]
    for line in menu.partition("\n\n")[0].splitlines():
        if section := SECTION.match(line):
            parts.append(f"\n## {section[1]}\n\n")
        if page := PAGE.match(line):
            parts.append(_entry(page[2]))
    return "".join(parts)


def _entry(name: str) -> str:
    text = (DOCS / name).read_text("utf-8")
    title = re.findall(r"^# (.*)$", text, re.MULTILINE)[0]
    return f"- [{title}]({_address(name)}): {first_sentence(text)}\n"


def _address(name: str) -> str:
    """Return where the site has a page."""
    return re.sub(r"(README|index)?\.md$", lambda found: "" if found[1] else "/", name) or "./"


def first_sentence(text: str) -> str:
    """Return the first sentence below the title, without links."""
    below = re.split(r"^# .*$", text, maxsplit=1, flags=re.MULTILINE)[1]
    paragraphs = [one for one in below.strip().split("\n\n") if re.match(r"[A-Z*]|`(?!`)", one)]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split()))
    return re.split(r"(?<=[.:]) (?=[A-Z])", plain)[0]
