"""Routes: declared once, with their types; served and documented from the declaration.

A handler is a method that is decorated with `route`. Its parameters say what it takes: names in
the path, `query` and `body` as msgspec Structs, and `call` for the rest of the request. msgspec
decodes bodies directly into Structs, which is several times faster than the models of frameworks,
and names unknown fields.
"""

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, urlencode

import msgspec
import msgspec.inspect

from penstock.core.errors import PenstockError
from penstock.core.job import NewJob
from penstock.core.jsontext import DEPTH_LIMIT, is_deeper
from penstock.core.tokens import Access
from penstock.engine.connection import Caller, acting_as, acting_for
from penstock.engine.tracing import tracing_request
from penstock.web.bodies import (
    Disconnected,
    Receive,
    Scope,
    Send,
    exchange_of,
    header,
    read_body,
)
from penstock.web.problems import Problem, problem_of, wrong_shape

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
T = TypeVar("T")

BODY_LIMIT = 2_000_000
"""The largest body in bytes, unless a route declares another limit."""

GONE = 499
"""Logged when the client disconnected before the answer, as in nginx; never sent."""

_QUERY_LIMIT = 8_000
_SEND_JSON = "the body must be sent as application/json"
_NO_BODY = "this route takes no body"
# The body of such a request has no meaning (RFC 9110, 9.3.1).
_WITHOUT_BODY = frozenset({"GET", "HEAD"})
# The limit is that of stored values; a body has a few levels around them.
_BODY_DEPTH = DEPTH_LIMIT + 8
_TOO_DEEP = f"the body is nested more than {DEPTH_LIMIT} levels deep"
_JSON = b"application/json"
_JSON_TYPE = (b"content-type", _JSON)
_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


class Answer(NamedTuple, Generic[T]):
    """An answer with its status and headers; `value` is encoded as JSON unless it is bytes."""

    status: int = 200
    value: T | bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Stream(NamedTuple):
    """An answer that is sent piece by piece, until it ends or its reader disconnects."""

    send: Callable[[Send, Receive], Awaitable[None]]


class Call(NamedTuple):
    """A request, besides its parameters and its body.

    A handler that takes long calls `check` before it returns any data: it raises a `Problem` if
    the caller has lost access meanwhile.
    """

    scope: Scope
    receive: Receive
    actor: str
    check: Callable[[], object]


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a route that takes no parameters."""


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a route that takes none: empty, or an empty object."""


class Declared(NamedTuple):
    """The declaration of a route."""

    method: str
    path: str
    access: Access | None
    status: int
    produces: str | None
    also: Mapping[int, Any]
    body_limit: int
    examples: Mapping[str, Any]
    streams: bool
    any_query: bool
    reads_body: bool


def route(
    method: str,
    path: str,
    access: Access | None,
    *,
    status: int = 200,
    produces: str | None = None,
    also: Mapping[int, Any] | None = None,
    body_limit: int = BODY_LIMIT,
    examples: Mapping[str, Any] | None = None,
    streams: bool = False,
    any_query: bool = False,
    reads_body: bool = False,
) -> Callable[[F], F]:
    """Declare a method as the handler of a route.

    `access` is the scope that a token needs, or None where no token is needed. The first line of
    the docstring is the summary. The return annotation is the type of the body: either the type
    itself, sent with `status`, or `Answer[type]` where the handler chooses a status or headers.
    `produces` is the content type of a body that is not JSON, and `also` maps further statuses to
    the types of their bodies (None: no body). `examples` are a `body` and answers by status.
    Query parameters that the handler does not take are refused; with `any_query`, they are ignored.
    So is a body, unless the handler takes one or, with `reads_body`, receives it from the `call`.
    """

    def declare(handler: F) -> F:
        declared = Declared(
            method,
            path,
            access,
            status,
            produces,
            also or {},
            body_limit,
            examples or {},
            streams,
            any_query,
            reads_body,
        )
        handlers: list[Declared] = handler.__dict__.setdefault("routes", [])
        handlers.insert(0, declared)
        return handler

    return declare


class Identity(NamedTuple):
    """The caller: the name, empty where no token is required, and whether it is an admin.

    `kind` says what the name is of: a token, or a user of the application that the server is
    mounted in.
    """

    name: str = ""
    is_admin: bool = True
    kind: Literal["token", "user"] = "token"


ANYBODY = Identity()
"""The caller where no token is required."""

Authenticate = Callable[[Scope, Access], Identity]
"""Returns who calls; raises a `Problem` if they lack a scope."""

Admit = Callable[[Sequence[NewJob]], None]
"""Raises a `Problem` if a route may not store one of these jobs."""


def _admit_all(_: Sequence[NewJob], /) -> None:
    """Admit every job: the route is not part of a service."""


class Route:
    """A declared route with its handler: an ASGI application."""

    def __init__(self, declared: Declared, handler: Callable[..., Awaitable[Any]]) -> None:
        self.declared = declared
        first, _, rest = (inspect.getdoc(handler) or "").partition("\n")
        self.summary = first.removesuffix(".")
        self.description = rest.strip() or first
        self.handler = handler
        self.authenticate: Authenticate | None = None
        self.admit: Admit = _admit_all
        signature = inspect.signature(handler, eval_str=True)
        hints = signature.parameters
        body = declared.produces or _body_of(signature.return_annotation)
        self.answers: dict[int, Any] = {declared.status: body, **declared.also}
        self.path_types = {
            name: hints[name].annotation for name in re.findall(r"{(\w+)}", declared.path)
        }
        self.query_type = hints["query"].annotation if "query" in hints else None
        self.body_type = hints["body"].annotation if "body" in hints else None
        ignores_body = declared.method in _WITHOUT_BODY or declared.reads_body
        expected = self.body_type or (None if ignores_body else NoBody)
        self._decoder = None if expected is None else msgspec.json.Decoder(expected)
        self.needs_body = self.body_type is not None and not _has_defaults(self.body_type)
        # Untyped values have no other limit of depth. Raw ones are checked where they are stored.
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
        """Serve one request, and return the status of the answer."""
        declared = self.declared
        with tracing_request(declared.method, declared.path, scope["headers"]):
            try:
                answer = await self._answer(scope, receive)
            except Disconnected:
                return GONE
            except Problem as problem:
                answer = answer_to(problem)
            except PenstockError as error:
                answer = answer_to(problem_of(error))
            except Exception:  # noqa: BLE001 - the caller gets an answer in any case
                _log.exception("%s %s failed", declared.method, declared.path)
                answer = answer_to(
                    Problem(500, "internal server error; the log of the server has the details")
                )
            if isinstance(answer, Stream):
                await answer.send(send, receive)
                return 200
            await respond(send, answer)
            return answer.status

    async def _answer(self, scope: Scope, receive: Receive) -> Answer[Any] | Stream:
        declared = self.declared
        caller = self._identify(scope)
        given: dict[str, Any] = {}
        for name, kind in self.path_types.items():
            given[name] = _parameter(scope["path_params"][name], kind, name)
        if self.query_type is not None:
            given["query"] = _query(scope["query_string"], self.query_type)
        elif scope["query_string"] and not declared.any_query:
            _query(scope["query_string"], NoParameters)
        if self._decoder is not None:
            body = await self._body(scope, receive)
            if self.body_type is not None:
                given["body"] = body
        if self._takes_call:
            given["call"] = Call(scope, receive, caller.name, lambda: self._identify(scope))
        # Without tokens there is one caller, who has all scopes.
        with acting_for(Caller(self.admit, caller.is_admin)):
            if caller.name:
                with acting_as(f"{caller.kind}:{caller.name}"):
                    answer = await self.handler(**given)
            else:
                answer = await self.handler(**given)
        return answer if isinstance(answer, Answer | Stream) else Answer(declared.status, answer)

    def _identify(self, scope: Scope) -> Identity:
        """Return who calls; raise a `Problem` if they may not use this route."""
        access = self.declared.access
        if access is None or self.authenticate is None:
            return ANYBODY
        return self.authenticate(scope, access)

    async def _body(self, scope: Scope, receive: Receive) -> Any:
        assert self._decoder is not None  # noqa: S101 - checked by the caller
        kind = header(scope, b"content-type")
        is_json = kind is None or kind == _JSON or _is_json(kind)
        if self.needs_body and not is_json:  # before it is read
            raise Problem(415, _SEND_JSON)
        body = await read_body(scope, receive, self.declared.body_limit)
        if not body:
            if self.needs_body:
                raise Problem(400, "the body is empty; send a JSON object")
            body = b"{}"  # some clients send a content type without content
        elif not is_json:
            raise Problem(415, _SEND_JSON) if self.body_type else self._no_body(body)
        try:
            if self._is_free and is_deeper(body, _BODY_DEPTH):
                raise Problem(422, _TOO_DEEP)
            return self._decoder.decode(body)
        except RecursionError:
            raise Problem(422, _TOO_DEEP) from None
        except msgspec.ValidationError as error:
            if self.body_type is None:
                raise self._no_body(body) from error
            raise wrong_shape(error, kind=self.body_type) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = str(error).removeprefix("JSON is malformed: ")
            raise Problem(400, f"the body is not JSON: {reason}") from error

    def _no_body(self, body: bytes) -> Problem:
        """Return the problem for a body that is not expected; it says where its values belong."""
        try:
            given = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            given = {}
        known = () if self.query_type is None else self.query_type.__struct_encode_fields__
        if not given or not given.keys() <= {*known}:
            return Problem(422, f"{_NO_BODY}; it would be ignored")
        texts = {
            name: value if isinstance(value, str) else _encode(value).decode()
            for name, value in given.items()
        }
        names = " and ".join(given)
        return Problem(422, f"{_NO_BODY}; send {names} in the query: ?{urlencode(texts):.200}")


def routes_of(owner: object) -> Iterator[Route]:
    """Return the routes that the methods of an object are declared as."""
    for _, method in inspect.getmembers(owner, inspect.ismethod):
        for declared in getattr(method, "routes", ()):
            yield Route(declared, method)


def answer_to(problem: Problem) -> Answer[Any]:
    """Return a problem as an answer."""
    headers = tuple((k.lower().encode(), v.encode()) for k, v in problem.headers.items())
    return Answer(problem.status, problem.body, headers)


async def respond(send: Send, answer: Answer[Any]) -> None:
    """Send an answer in one piece."""
    status, value, headers = answer
    if value is None:
        body = b""
        start = [*headers]
    else:
        body = value if isinstance(value, bytes) else _encode(value)
        start = [(b"content-length", b"%d" % len(body)), *headers]
        if not headers or not any(name == b"content-type" for name, _ in headers):
            start.append(_JSON_TYPE)
        exchange = exchange_of(send)
        if exchange is not None and exchange.respond(status, start, body):
            return
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def _body_of(annotation: Any) -> Any:
    """Return the type of the body that a return annotation promises; None for an empty body."""
    kind = get_args(annotation)[0] if get_origin(annotation) is Answer else annotation
    return None if kind is type(None) else kind


def _is_strict(kind: Any) -> bool:
    """Return whether a type refuses unknown fields."""
    return issubclass(kind, msgspec.Struct) and kind.__struct_config__.forbid_unknown_fields


def _has_defaults(kind: Any) -> bool:
    """Return whether all fields of a type are optional."""
    try:
        msgspec.convert({}, kind)
    except msgspec.ValidationError:
        return False
    return True


def _holds_anything(kind: Any) -> bool:
    """Return whether a type contains untyped values."""
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
        raise Problem(414, f"the query string is longer than {_QUERY_LIMIT:,} bytes")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError) as error:
        raise Problem(422, f"the query string cannot be decoded: {error}") from error
    given = dict(pairs)
    if len(given) != len(pairs):
        raise Problem(422, f"the parameter {_repeated(pairs)} is given twice")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_shape(error, kind=kind, given=given) from error


def _repeated(pairs: list[tuple[str, str]]) -> str:
    names = [name for name, _ in pairs]
    return repr(next(name for name in names if names.count(name) > 1))[:80]
