"""Notebooks beside one `git add` and `git commit` for each file."""

from benchmarks.contenders import Contender
from benchmarks.places import lasting_folders
from benchmarks.scenarios import notebooks
from benchmarks.suites import Bar, Column, Suite, at, best_of, none

SUITE = Suite(
    name="notebooks",
    ours="penstock",
    ground=lasting_folders,
    contenders=(
        Contender(
            "penstock",
            "penstock serve",
            "benchmarks.contenders.notebooks:NotebookServer",
            "uvicorn",
        ),
        Contender(
            "git",
            "git add and git commit per file",
            "benchmarks.contenders.notebooks:GitPerFile",
        ),
    ),
    scenarios=notebooks.SCENARIOS,
    columns=(Column("new files /s", "creates.rate"),),
    details=(
        Column("commit of a moved folder, s", "folder.committed", "{:.1f}"),
        Column("published while a commit ran", "folder.published"),
    ),
    bars=(
        Bar("new files", "creates.rate", best_of("creates.rate", {"git": 10}), none),
        Bar("commits for them", "creates.commits", at(12), none, "{:.0f}", less_is_better=True),
        Bar("folder moved", "folder.moved", at(3), none, "{:.2f} s", less_is_better=True),
        Bar(
            "publish while a commit runs, p95",
            "folder.publish",
            at(20),
            none,
            "{:.1f} ms",
            less_is_better=True,
        ),
        Bar("copied files seen", "folder.seen", at(10), none, "{:.1f} s", less_is_better=True),
        Bar("server, idle", "folder.idle", at(1), none, "{:.2f}% of a core", less_is_better=True),
    ),
)
