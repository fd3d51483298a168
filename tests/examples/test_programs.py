"""The example programs run, each in the way that it says itself."""

import re
import shutil
import socketserver
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from penstock import Penstock, run_sync
from tests.cli.support import COMMAND, started
from tests.environment import SOON

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the examples, as in a clone, but for what they write."""
    for name in PROGRAMS:
        shutil.copy(EXAMPLES / name, tmp_path)
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    """What a program prints, that ends well."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=SOON,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_short_says_how_to_run_it_and_is_in_the_list(name: str) -> None:
    text = (EXAMPLES / name).read_text("utf-8")
    assert len(text.splitlines()) < 120 or name == "demo.py"
    assert f"[{name}]({name})" in (EXAMPLES / "README.md").read_text("utf-8")
    imported = re.findall(r"^(?:from|import) (penstock[\w.]*)", text, re.MULTILINE)
    public = r"penstock|penstock\.vectors|penstock\.integrations\.\w+"
    assert all(re.fullmatch(public, one) for one in imported)


# A web app that sends mail


class MailServer(socketserver.StreamRequestHandler):
    """Refuses the first mail for the moment, and keeps the others."""

    refused = False
    mails: list[str]

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline():
            match line[:4].upper():
                case b"DATA":
                    self.wfile.write(self._take())
                case b"QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                case _:
                    self.wfile.write(b"250 ok\r\n")

    def _take(self) -> bytes:
        self.wfile.write(b"354 go on\r\n")
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            lines.append(line.decode())
        if not type(self).refused:
            type(self).refused = True
            return b"451 try again later\r\n"
        self.mails.append("".join(lines))
        return b"250 ok\r\n"


@contextmanager
def listening(server: socketserver.TCPServer) -> Iterator[int]:
    """The port of a server that answers inside the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_web_app_sends_mail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mails: list[str] = []
    handler = type("Handler", (MailServer,), {"mails": mails})
    with listening(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)) as port:
        monkeypatch.setenv("SMTP_HOST", "127.0.0.1")
        monkeypatch.setenv("SMTP_PORT", str(port))
        web = (sys.executable, "-m", "uvicorn", "--port", "0", "mail_app:web")
        with started(web, folder) as serving:
            url = re.findall(r"http://\S+", serving.wait_for("running on http"))[0]
            with httpx.Client(base_url=url, timeout=SOON) as client:
                answer = client.post("/users", json={"email": "ada@example.org"})
                assert answer.status_code == 202
                # The second time, the job is rolled back with the user.
                again = client.post("/users", json={"email": "ada@example.org"})
                assert again.status_code == 409
                assert client.get("/users").json() == {"ada@example.org": "pending"}
                with started((*COMMAND, "worker", "mail_app"), folder) as worker:
                    worker.wait_for("(welcome) failed: smtplib.SMTPDataError")
                    worker.wait_for("(welcome) is done; queue mail, attempt 2 of 10")
                assert client.get("/users").json() == {"ada@example.org": "done"}
    (mail,) = mails
    assert "Subject: Welcome!" in mail
    assert "To: ada@example.org" in mail


# Thumbnails, ETL


def test_hostile_picture_fails_alone(folder: Path) -> None:
    lines = run(folder, "thumbnails.py").splitlines()
    ended = dict(line.split(" ", 1) for line in lines)
    assert ended.pop("hostile.png").startswith("failed MemoryError")
    assert len(ended) == 4
    assert all(text.startswith("done 128 x ") for text in ended.values()), ended
    assert {path.name for path in (folder / "thumbnails").iterdir()} == set(ended)


def test_totals_are_those_of_all_files(folder: Path) -> None:
    printed = run(folder, "etl.py")
    assert printed.startswith("8 files: {")
    expected = 8 * sum(n % 7 + 0.5 for n in range(50))
    with closing(sqlite3.connect(folder / "warehouse.db")) as warehouse:
        ((total,),) = warehouse.execute("SELECT sum(total) FROM turnover")
    assert total == pytest.approx(expected)


# A slow API


class SlowApi(BaseHTTPRequestHandler):
    """Answers when it likes; asks for a pause once, and remembers who called."""

    calls: list[str]
    running: list[int]
    paused: list[str]

    def do_GET(self) -> None:
        _, _, customer, number = self.path.split("/")
        self.running.append(1)
        most = len(self.running)
        time.sleep(0.02)
        self.running.pop()
        if number == "3" and not self.paused:
            self.paused.append(customer)
            self.send_response(429)
            self.send_header("Retry-After", "0.1")
            self.end_headers()
            return
        self.calls.append(f"{customer} {most}")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"fine")

    def log_message(self, *_: object) -> None:
        pass


def test_api_is_called_within_its_limits_and_customers_take_turns(folder: Path) -> None:
    calls: list[str] = []
    members = {"calls": calls, "running": [], "paused": []}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (SlowApi,), members))
    with listening(server) as port:
        printed = run(folder, "slow_api.py", f"http://127.0.0.1:{port}").splitlines()
    assert [line.partition(", the")[0] for line in printed] == [
        *("large: 40 calls", "small: 4 calls", "tiny: 1 calls"),
    ]
    customers, running = zip(*(call.split() for call in calls), strict=True)
    assert len(members["paused"]) == 1
    assert max(map(int, running)) <= 4
    assert "tiny" in customers[:8]  # it has not waited for the 40 calls before it
    assert "large" in customers[-4:]
    app = Penstock(f"sqlite:///{folder}/calls.db", create=False)
    assert all(job.attempt == 1 for job in run_sync(app.find()))
    run_sync(app.close())


# Embeddings, reports


def test_files_are_embedded_in_batches_and_found_by_meaning(folder: Path) -> None:
    (folder / "texts").mkdir()
    for n in range(40):
        (folder / "texts" / f"{n:02}.md").write_text(f"# Note {n}\n\nNothing of interest.\n")
    (folder / "texts" / "bread.md").write_text("# Baking\n\nPut the loaf into the hot oven.\n")
    printed = run(folder, "embeddings.py", "texts", "how do I bake bread?").splitlines()
    assert any(line.startswith("done: 3 jobs") for line in printed)
    assert "texts/bread.md" in next(line for line in printed if line[0].isdigit())


def test_reports_are_scheduled_and_written(folder: Path) -> None:
    assert run(folder, "reports.py").count("next at ") == 3
    assert run(folder, "reports.py").count("next at ") == 3  # repeating it changes nothing
    store = ("--store", "sqlite:///reports.db")
    with started((*COMMAND, "worker", "reports"), folder) as worker:
        worker.wait_for("Worker ")
        assert "clean_up" in run(folder, *COMMAND[1:], "cron", "list", *store)
        run(folder, *COMMAND[1:], "cron", "run", "daily-tokyo", *store)
        worker.wait_for("(report) is done; queue reports")
    (report,) = (folder / "reports").iterdir()
    assert re.fullmatch(r"tokyo-\d{4}-\d\d-\d\d\.txt", report.name)
    assert "JST" in report.read_text("utf-8")
