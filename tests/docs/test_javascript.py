"""The JavaScript example of the ingestion queue works on a queue."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from penstock import JobQuery, Penstock, State, run_sync
from penstock.apps.ingest import unified_queue

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "unified-queue.md"
MODULE = "node:sqlite"
# Before version 22, Node has no such module: then Python runs the statements of the example.
STAND_IN = """
import { spawnSync } from "node:child_process";

const program = `
import json, sqlite3, sys
path, sql, parameters = json.load(sys.stdin)
with sqlite3.connect(path) as database:
    database.row_factory = sqlite3.Row
    cursor = database.execute(sql, parameters)
    rows = [dict(row) for row in cursor.fetchall()]
print(json.dumps({"rows": rows, "changes": cursor.rowcount}))
database.close()
`;

export class DatabaseSync {
  constructor(path) {
    this.path = path;
  }
  ask(sql, parameters) {
    const input = JSON.stringify([this.path, sql, parameters]);
    const ran = spawnSync(process.env.PYTHON, ["-c", program], { input, encoding: "utf8" });
    if (ran.status !== 0) throw new Error(ran.stderr);
    return JSON.parse(ran.stdout);
  }
  exec(sql) {
    this.ask(sql, []);
  }
  prepare(sql) {
    return {
      all: (...parameters) => this.ask(sql, parameters).rows,
      run: (...parameters) => this.ask(sql, parameters),
    };
  }
}
"""


def node(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["node", *arguments],  # noqa: S607 - without node it fails: nobody would know if it works
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_example_of_the_page_leases_and_finishes(tmp_path: Path) -> None:
    [example] = re.findall(r"```javascript\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    if node("-e", f"require('{MODULE}')", folder=tmp_path).returncode:
        (tmp_path / "sqlite.mjs").write_text(STAND_IN)
        example = example.replace(MODULE, "./sqlite.mjs")
    (tmp_path / "example.mjs").write_text(example)
    app = Penstock(f"sqlite:///{tmp_path}/queue.db")
    run_sync(unified_queue.prepare(app))
    with closing(sqlite3.connect(tmp_path / "queue.db")) as database, database:
        database.executemany(
            "INSERT INTO unified_queue (item_type, op, tenant_id, collection, idempotency_key, "
            "payload_json) VALUES ('content', 'ingest', 'acme', 'notes', ?, ?)",
            [(f"note {n}", f'{{"content": "note {n}"}}') for n in range(2)],
        )
    ran = node("example.mjs", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["{ content: 'note 0' }", "{ content: 'note 1' }"]
    jobs = run_sync(app.find(JobQuery()))
    assert [(job.state, job.worker) for job in jobs] == [(State.DONE, "node-1")] * 2
    run_sync(app.close())
