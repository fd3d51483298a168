"""The diagrams of the documentation, as descriptions."""

from collections.abc import Mapping

from docs.generate.svg import Arrow, Box, Graph, Message, Sequenced

LIFE = Graph(
    "The life of a job",
    {
        "enqueue": Box(0, 0, "enqueue", "note"),
        "pending": Box(1.1, 0, "pending|ready, scheduled or blocked"),
        "running": Box(3.2, 0, "running|one lease, one token"),
        "done": Box(5, -0.8, "done|with its result", "end"),
        "failed": Box(5, 0, "failed|no attempts left", "bad"),
        "cancelled": Box(5, 1.5, "cancelled", "bad"),
        "superseded": Box(1.1, 1.7, "superseded|a newer job does it", "end"),
    },
    (
        Arrow("enqueue", "pending"),
        Arrow("pending", "running", "claimed", bend=-22),
        Arrow("running", "pending", "failed, expired, snoozed, reset", bend=-48),
        Arrow("running", "done", "done"),
        Arrow("running", "failed", "failed, expired"),
        Arrow("running", "cancelled", "cancelled", bend=-14),
        Arrow("running", "superseded", bend=-20),
        Arrow("pending", "cancelled", "cancelled", bend=44),
        Arrow("pending", "superseded", "superseded"),
        Arrow("failed", "pending", "reset", bend=170),
        Arrow("cancelled", "pending", "reset", bend=-110),
    ),
)

EVENTS = Graph(
    "The life of an event",
    {
        "publish": Box(0, 0, "POST /events", "note"),
        "pending": Box(1.2, 0, "PENDING|for a subscriber"),
        "running": Box(3.2, 0, "PROCESSING|leased to one worker"),
        "done": Box(5, -0.8, "COMPLETED", "end"),
        "failed": Box(5, 0, "FAILED", "bad"),
        "cancelled": Box(5, 1.5, "CANCELLED", "bad"),
        "superseded": Box(1.2, 1.7, "SUPERSEDED|a newer job does it", "end"),
    },
    (
        Arrow("publish", "pending", "201"),
        Arrow("pending", "running", "subscribe", bend=-22),
        Arrow("running", "pending", "fail, release, reset, expired", bend=-40),
        Arrow("running", "done", "complete"),
        Arrow("running", "failed", "last fail"),
        Arrow("running", "cancelled", "cancelled", bend=-14),
        Arrow("running", "superseded", bend=-20),
        Arrow("pending", "cancelled", "cancelled", bend=84),
        Arrow("pending", "superseded", "superseded"),
        Arrow("failed", "pending", "reset", bend=170),
        Arrow("cancelled", "pending", "reset", bend=-150),
    ),
)

LAYERS = Graph(
    "The layers: each imports only from those below",
    {
        "django": Box(0, 0, "django|tasks, admin, commands of a project"),
        "edges": Box(0, 0.75, "cli · testing · integrations|people, tests, other frameworks"),
        "server": Box(-0.55, 1.5, "server|one ASGI application"),
        "client": Box(0.75, 1.5, "client|the API from Python"),
        "dashboard": Box(0, 2.25, "dashboard|pages and scripts"),
        "apps": Box(0, 3, "apps|events, notebooks, indexing, entries, ingest"),
        "web": Box(0, 3.75, "web · config|routes, bodies, OpenAPI; settings"),
        "worker": Box(0, 4.5, "worker|claim, run, settle, renew"),
        "engine": Box(0, 5.25, "engine|Penstock: validate, decide"),
        "stores": Box(-0.75, 6, "stores|compare and set"),
        "vectors": Box(0.75, 6, "vectors|chunk, embed, search"),
        "runtime": Box(0, 6.75, "runtime · forks|clock, threads, files, processes"),
        "core": Box(0, 7.5, "core|values, state machine, rules; no I/O", "end"),
        "people": Box(-2, 0.75, "people and programs|any language", "note"),
        "programs": Box(-2, 4.875, "your program|imports penstock", "note"),
    },
    (
        Arrow("people", "server", "HTTP"),
        Arrow("programs", "worker"),
        Arrow("programs", "engine"),
        Arrow("django", "edges"),
        Arrow("edges", "server"),
        Arrow("edges", "client"),
        Arrow("server", "dashboard"),
        Arrow("dashboard", "apps"),
        Arrow("apps", "web"),
        Arrow("web", "worker"),
        Arrow("worker", "engine"),
        Arrow("engine", "stores"),
        Arrow("engine", "vectors"),
        Arrow("stores", "runtime"),
        Arrow("vectors", "runtime"),
        Arrow("runtime", "core"),
    ),
)

CRASH = Sequenced(
    "What happens at a crash",
    ("worker A", "store", "worker B"),
    (
        Message(0, 1, "claim"),
        Message(1, 0, "job 42, token 7, lease of 30 s"),
        Message(0, 0, "killed, or suspended", "bad"),
        Message(1, 1, "the lease expires: logged, the job is pending again"),
        Message(2, 1, "claim"),
        Message(1, 2, "job 42, token 9"),
        Message(0, 1, "A comes back: done, token 7"),
        Message(1, 0, "LeaseLost: refused, and logged"),
        Message(2, 1, "done, token 9"),
        Message(1, 1, "done, stored once", "end"),
    ),
)

GROWTH = Graph(
    "From one machine to many",
    {
        "one": Box(0, 0, "one machine", "note"),
        "program": Box(0, 1, "your program|producers and workers"),
        "file": Box(0, 2.2, "jobs.db|one SQLite file", "end"),
        "http": Box(2, 0, "one machine, and others over HTTP", "note"),
        "others": Box(1.5, 1, "other programs|any language"),
        "workers": Box(2.5, 1, "workers"),
        "serve": Box(1.5, 2.2, "penstock serve|tokens"),
        "file2": Box(2.5, 2.2, "jobs.db", "end"),
        "many": Box(4.1, 0, "many machines", "note"),
        "fleet": Box(3.7, 1, "workers|any number"),
        "servers": Box(4.6, 1, "servers|any number"),
        "postgres": Box(4.15, 2.2, "PostgreSQL|primary and standby", "end"),
    },
    (
        Arrow("program", "file"),
        Arrow("others", "serve", "HTTP"),
        Arrow("serve", "file2"),
        Arrow("workers", "file2"),
        Arrow("fleet", "postgres"),
        Arrow("servers", "postgres"),
        Arrow("one", "http", "penstock serve"),
        Arrow("http", "many", "penstock migrate"),
    ),
)

NOTEBOOKS = Graph(
    "Notebooks: from an API or an editor to a commit",
    {
        "api": Box(-0.3, 0, "POST …/notebooks/{notebook}/files|and the other operations", "note"),
        "people": Box(-0.3, 1.2, "people with editors", "note"),
        "jobs": Box(1.6, 0, "operations|jobs, in order per path"),
        "watch": Box(1.6, 1.2, "scan and watch|what changed outside"),
        "files": Box(3.1, 0.6, "files in the folder|with metadata in the store"),
        "git": Box(4.5, 0.6, "git|one commit per batch", "end"),
    },
    (
        Arrow("api", "jobs", "202 or 200"),
        Arrow("people", "watch"),
        Arrow("jobs", "files", "written"),
        Arrow("watch", "files", "recorded"),
        Arrow("files", "git", "committed"),
    ),
)

INDEXING = Graph(
    "Indexing: from a folder to a search",
    {
        "folder": Box(0, 0, "penstock index docs|or POST /index", "note"),
        "job": Box(1.3, 0, "job|checkpoints every 50 files"),
        "chunk": Box(2.6, 0, "changed files|split and embedded"),
        "index": Box(3.9, 0, "collection|words and vectors", "end"),
        "search": Box(3.9, 1.1, "penstock search|or POST /query", "note"),
    },
    (
        Arrow("folder", "job", "202"),
        Arrow("job", "chunk"),
        Arrow("chunk", "index"),
        Arrow("search", "index", "by meaning and words"),
    ),
)

ENTRIES = Graph(
    "Entries: stored at once, embedded in the background",
    {
        "write": Box(-0.2, 0, "POST …/entries/write|or a file to import", "note"),
        "row": Box(1.2, 0, "row and job|in one transaction"),
        "embed": Box(2.6, 0, "worker process|embeds in batches"),
        "index": Box(4, 0, "index", "end"),
        "status": Box(1.2, 1.1, "embedding_status|pending, processing, embedded or failed", "note"),
    },
    (
        Arrow("write", "row", "200"),
        Arrow("row", "embed"),
        Arrow("embed", "index", "vectors"),
        Arrow("row", "status", "always true"),
    ),
)

INGEST = Graph(
    "Ingest: one queue for everything",
    {
        "http": Box(0, 0, "POST …/ingest|or penstock ingest", "note"),
        "sql": Box(0, 1.1, "INSERT into unified_queue|any language", "note"),
        "items": Box(1.6, 0.5, "items|jobs by tenant and collection"),
        "folder": Box(3, -0.2, "a folder item|becomes file items"),
        "file": Box(3, 1.1, "texts, files, libraries"),
        "collection": Box(4.4, 0.5, "collections|searchable", "end"),
    },
    (
        Arrow("http", "items", "202"),
        Arrow("sql", "items"),
        Arrow("items", "folder"),
        Arrow("items", "file"),
        Arrow("folder", "file", "one each"),
        Arrow("file", "collection"),
    ),
)

DIAGRAMS: Mapping[str, Graph | Sequenced] = {
    "life": LIFE,
    "layers": LAYERS,
    "crash": CRASH,
    "growth": GROWTH,
    "events": EVENTS,
    "notebooks": NOTEBOOKS,
    "indexing": INDEXING,
    "entries": ENTRIES,
    "ingest": INGEST,
}
"""By the name of their file in docs/images/diagrams."""
