"""Routes: declared once, with what they take and answer; served thinly and documented from that.

A handler is a method that is decorated with `route`. Its parameters say what it takes: names
that stand in the path, `query` and `body` as msgspec Structs, `call` for what else there is.
Bodies are decoded by msgspec straight into Structs, which is several times faster than a
framework's own models, and refuses unknown fields by name.
"""

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
import msgspec.inspect

from penstock.core.errors import PenstockError
from penstock.core.job import NewJob
from penstock.core.jsontext import DEPTH_LIMIT, is_deeper
from penstock.core.token import Access
from penstock.http.bodies import Disconnected, Receive, Scope, Send, header, read_body
from penstock.http.problems import Problem, problem_of, wrong_shape
from penstock.opening import Caller, acting_as, acting_for
from penstock.tracing import tracing_request

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

BODY_LIMIT = 2_000_000
"""Bytes that a body may have, unless a route says otherwise."""

GONE = 499
"""No status: the caller went away before it was answered. As nginx calls it."""

_QUERY_LIMIT = 8_000
_SEND_JSON = "send the body as application/json"
# What is stored of a body has the limit itself; around it there are a few levels.
_BODY_DEPTH = DEPTH_LIMIT + 8
_TOO_DEEP = Problem(422, f"the body is nested more than {DEPTH_LIMIT} levels deep")
_JSON = b"application/json"
_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What a handler answers: a status, a value to be encoded or bytes, and headers."""

    status: int = 200
    value: Any = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Stream(NamedTuple):
    """An answer that is sent bit by bit, until it ends or its reader goes away."""

    send: Callable[[Send, Receive], Awaitable[None]]


class Call(NamedTuple):
    """What a request brings besides its parameters and its body.

    What takes long calls `check` before it gives anything away: it raises the `Problem` why the
    caller may not have it any more.
    """

    scope: Scope
    receive: Receive
    actor: str
    check: Callable[[], object]


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a route that takes no parameters."""


class Declared(NamedTuple):
    """What a route is declared as."""

    method: str
    path: str
    access: Access | None
    summary: str
    answers: Mapping[int, Any]
    body_limit: int
    examples: Mapping[str, Any]
    streams: bool
    any_query: bool


def route(
    method: str,
    path: str,
    access: Access | None,
    summary: str,
    *,
    answers: Mapping[int, Any],
    body_limit: int = BODY_LIMIT,
    examples: Mapping[str, Any] | None = None,
    streams: bool = False,
    any_query: bool = False,
) -> Callable[[F], F]:
    """Declare a method as the handler of a route.

    `access` is the scope that a token needs for it, None where none is needed. `answers` maps
    each status to the type of its body, None where there is none. `examples` are a `body` and
    answers by status. With `any_query`, query parameters are ignored; otherwise those that the
    handler does not take are refused.
    """

    def declare(handler: F) -> F:
        declared = Declared(
            method, path, access, summary, answers, body_limit, examples or {}, streams, any_query
        )
        handlers: list[Declared] = handler.__dict__.setdefault("routes", [])
        handlers.insert(0, declared)
        return handler

    return declare


class Identity(NamedTuple):
    """Who calls: the name of a token, empty where none is needed, and whether it has all rights."""

    name: str = ""
    is_admin: bool = True


Gate = Callable[[Scope, Access], Identity]
"""Says who calls, or raises the `Problem` why they may not."""

Admit = Callable[[Sequence[NewJob]], None]
"""Raises the `Problem` why a route may not store one of these jobs."""


def _admit_all(_: Sequence[NewJob], /) -> None:
    """Stand for a boundary, where a route is not part of a service."""


class Route:
    """A declared route with its handler: an ASGI application."""

    def __init__(self, declared: Declared, handler: Callable[..., Awaitable[Any]]) -> None:
        self.declared = declared
        self.description = inspect.getdoc(handler) or ""
        self.handler = handler
        self.gate: Gate | None = None
        self.admit: Admit = _admit_all
        hints = inspect.signature(handler, eval_str=True).parameters
        self.path_types = {
            name: hints[name].annotation for name in re.findall(r"{(\w+)}", declared.path)
        }
        self.query_type = hints["query"].annotation if "query" in hints else None
        self.body_type = hints["body"].annotation if "body" in hints else None
        self._decoder = msgspec.json.Decoder(self.body_type) if self.body_type else None
        self.needs_body = self.body_type is not None and not _has_defaults(self.body_type)
        # Values that a route takes as they are have no other bound. Raw ones are read, and
        # checked, where they are stored.
        self._is_free = self.body_type is not None and _holds_anything(self.body_type)
        self._takes_call = "call" in hints
        if self.query_type is not None and not _is_strict(self.query_type):
            raise TypeError(f"{self!r}: {self.query_type.__name__} must forbid unknown fields")

    def __repr__(self) -> str:
        return f"<Route {self.declared.method} {self.declared.path}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as an ASGI application."""
        await self.serve(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request; the status of its answer."""
        declared = self.declared
        with tracing_request(declared.method, declared.path, scope["headers"]):
            return await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> int:
        try:
            answer = await self._answer(scope, receive)
        except Disconnected:
            return GONE
        except Problem as problem:
            answer = answer_to(problem)
        except PenstockError as error:
            answer = answer_to(problem_of(error))
        except Exception:  # noqa: BLE001 - whatever it is, the caller gets an answer
            _log.exception("%s %s failed", self.declared.method, self.declared.path)
            answer = answer_to(Problem(500, "the server failed; its log says why"))
        if isinstance(answer, Stream):
            await answer.send(send, receive)
            return 200
        await respond(send, answer)
        return answer.status

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | Stream:
        caller = self._identify(scope)
        given: dict[str, Any] = {}
        for name, kind in self.path_types.items():
            given[name] = _parameter(scope["path_params"][name], kind, name)
        if self.query_type is not None:
            given["query"] = _query(scope["query_string"], self.query_type)
        elif scope["query_string"] and not self.declared.any_query:
            _query(scope["query_string"], NoParameters)
        if self._decoder is not None:
            given["body"] = await self._body(scope, receive)
        if self._takes_call:
            given["call"] = Call(scope, receive, caller.name, lambda: self._identify(scope))
        # Without tokens there is one caller, who may do everything, also what needs `admin`.
        with acting_for(Caller(self.admit, caller.is_admin)):
            if caller.name:
                with acting_as(f"token:{caller.name}"):
                    answer = await self.handler(**given)
            else:
                answer = await self.handler(**given)
        return answer if isinstance(answer, Answer | Stream) else Answer(200, answer)

    def _identify(self, scope: Scope) -> Identity:
        """Who calls; raises the `Problem` why they may not."""
        access = self.declared.access
        return self.gate(scope, access) if self.gate and access else Identity()

    async def _body(self, scope: Scope, receive: Receive) -> Any:
        assert self._decoder is not None  # noqa: S101 - checked by the caller
        kind = header(scope, b"content-type")
        is_json = kind is None or _is_json(kind)
        if self.needs_body and not is_json:  # before a body is read in vain
            raise Problem(415, _SEND_JSON)
        body = await read_body(scope, receive, self.declared.body_limit)
        if not body:
            if self.needs_body:
                raise Problem(400, "the body is empty; send a JSON object")
            body = b"{}"  # some clients announce a type of content even without any
        elif not is_json:
            raise Problem(415, _SEND_JSON)
        try:
            if self._is_free and is_deeper(body, _BODY_DEPTH):
                raise _TOO_DEEP
            return self._decoder.decode(body)
        except RecursionError:
            raise _TOO_DEEP from None
        except msgspec.ValidationError as error:
            raise wrong_shape(error, kind=self.body_type) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = str(error).removeprefix("JSON is malformed: ")
            raise Problem(400, f"the body is not JSON: {reason}") from error


def routes_of(owner: object) -> Iterator[Route]:
    """The routes that the methods of an object were declared as."""
    for _, method in inspect.getmembers(owner, inspect.ismethod):
        for declared in getattr(method, "routes", ()):
            yield Route(declared, method)


def answer_to(problem: Problem) -> Answer:
    """A problem as an answer."""
    headers = tuple((k.lower().encode(), v.encode()) for k, v in problem.headers.items())
    return Answer(problem.status, problem.body, headers)


async def respond(send: Send, answer: Answer) -> None:
    """Send an answer whole."""
    status, value, headers = answer
    if value is None:
        body = b""
        start = [*headers]
    else:
        body = value if isinstance(value, bytes) else _encode(value)
        start = [(b"content-length", str(len(body)).encode()), *headers]
        if not any(name == b"content-type" for name, _ in headers):
            start.append((b"content-type", _JSON))
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def _is_strict(kind: Any) -> bool:
    """Whether a type refuses fields that it does not have."""
    return issubclass(kind, msgspec.Struct) and kind.__struct_config__.forbid_unknown_fields


def _has_defaults(kind: Any) -> bool:
    """Whether all fields of a body may be left out."""
    try:
        msgspec.convert({}, kind)
    except msgspec.ValidationError:
        return False
    return True


def _holds_anything(kind: Any) -> bool:
    """Whether a type has a place for values of any type."""
    return "AnyType()" in repr(msgspec.inspect.type_info(kind))


def _is_json(kind: bytes) -> bool:
    name = kind.split(b";")[0].strip().lower()
    return name == _JSON or name.endswith(b"+json")


def _parameter(text: str, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_shape(error, kind=kind, where=name, given=text) from error


def _query(raw: bytes, kind: Any) -> Any:
    if len(raw) > _QUERY_LIMIT:
        raise Problem(414, f"the parameters are longer than {_QUERY_LIMIT:,} bytes")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError) as error:
        raise Problem(422, f"the parameters cannot be read: {error}") from error
    given = dict(pairs)
    if len(given) != len(pairs):
        raise Problem(422, "a parameter is given twice")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_shape(error, kind=kind, given=given) from error
