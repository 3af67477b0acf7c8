"""Access control: hosts, sessions, origins, form tokens, sizes and headers.

Requests are refused here before they reach a page. A form has a token that is bound to its session and its subject.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from inspect import isawaitable
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from langgraph_keel.engine.audit import is_name
from langgraph_keel.errors import (
    AlreadyDecided,
    CorruptStore,
    InvalidInput,
    KeelError,
    NotAllowed,
    NotFound,
    ReadOnlyStore,
    StoreError,
    ThreadExists,
    ThreadTaken,
    ValueRefused,
)

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The host names of a page on the browser's own machine."""
MOST_BODY = 1 << 20
"""Maximum size of a form, in bytes."""
MOST_FIELDS, LONGEST_FIELD, LONGEST_VALUE = 20, 2_000, 500_000
"""Maximum fields of a form; characters of a field, and of arguments or answers."""
_LONG = ("args", "value")
_FORM = "application/x-www-form-urlencoded"
HEADERS: Mapping[str, str] = {
    # Keel's HTML has style attributes, which are allowed; content of other origins is not.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_STATUSES: Sequence[tuple[tuple[type[KeelError], ...], int]] = (
    ((NotFound,), 404),
    ((AlreadyDecided, ThreadTaken, ThreadExists), 409),
    ((NotAllowed, ReadOnlyStore), 403),
    ((InvalidInput, ValueRefused), 400),
    ((CorruptStore,), 500),
    ((StoreError,), 503),
)
"""The HTTP status by error class; the first match applies."""
Identify: TypeAlias = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Returns the name of the person who sent a request, or `None` to refuse it."""


class Refusal(Exception):
    """A refused request, with its HTTP status and the reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks requests.

    Attributes:
        identify: Names the person; not called with `login`.
        hosts: The allowed host names of the page, without ports.
        read_only: Whether all forms are refused.
        secret: The key of sessions and tokens.
        login: Whether the page has its own sessions, started with a token in a URL.
        by: With `login`, the name of the signed-in person.
    """

    identify: Identify
    hosts: Collection[str] = LOOPBACK
    read_only: bool = False
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    login: bool = False
    by: str = ""

    @property
    def token(self) -> str:
        """The token that starts a session."""
        return self.sign("login")

    @property
    def cookie(self) -> str:
        """The cookie's name, unique per server: browsers send cookies to all ports."""
        return f"keel-{self.sign('cookie')[:12]}"

    def sign(self, *parts: str) -> str:
        """Return a keyed hash of texts, as 64 hexadecimal digits."""
        # Each text with its length, so that different texts never give the same data.
        data = b"".join(f"{len(part)}:{part}".encode(errors="surrogatepass") for part in parts)
        return hmac.digest(self.secret, data, sha256).hex()

    def check_host(self, request: Request) -> None:
        """Refuse a request for another host name (DNS rebinding)."""
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self.hosts or len(request.headers.getlist("host")) != 1:
            raise Refusal(
                400, "This page is not served under that host name. Allow it in hosts=, or with --allow-host."
            )

    def begin(self, request: Request, query: Mapping[str, str]) -> Response:
        """Exchange the token in a URL for a session."""
        if not self.login or not _is_same(query.get("token", ""), self.token):
            raise Refusal(403, "This link is not valid. Use the link that `keel web` printed when it started.")
        name = secrets.token_hex(16)
        response = RedirectResponse("./", 303)
        path, is_secure = f"{request.scope.get('root_path', '')}/", request.url.scheme == "https"
        value = f"{name}.{self.sign('session', name)}"
        response.set_cookie(self.cookie, value, path=path, httponly=True, samesite="strict", secure=is_secure)
        return response

    async def find_person(self, request: Request) -> tuple[str, str]:
        """Return the person who sent a request, and the session of form tokens."""
        if self.login:
            value = request.cookies.get(self.cookie, "")
            name, _, signed = value.partition(".")
            if not _is_same(signed, self.sign("session", name)):
                raise Refusal(401, "You are not signed in here. Use the link that `keel web` printed.")
            return self.by, value
        found = self.identify(request)
        by = await found if isawaitable(found) else found
        if by is None:
            raise Refusal(401, "You are not signed in.")
        if not isinstance(by, str) or not is_name(by):
            raise Refusal(403, "The name under which you are signed in cannot be recorded.")
        return by, f"by:{by}"

    def check_origin(self, request: Request) -> None:
        """Refuse a form that was sent by a page of another origin."""
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
        is_ours = urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
        if site != "same-origin" and not (site is None and is_ours):
            raise Refusal(403, "This form was not sent by this page. Open the page again, and send it from there.")

    def check_form(self, form: Mapping[str, str], session: str, *subject: str) -> None:
        """Refuse a form without the right token, and every form of a read-only page."""
        if self.read_only:
            raise Refusal(403, "This page is read-only. Nothing was changed.")
        if not _is_same(form.get("token", ""), self.sign("form", session, *subject)):
            raise Refusal(
                403, "This form does not belong to your session. Open the page again, and send it from there."
            )


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def from_proxy(header: str, proxies: Collection[str]) -> Identify:
    """Return a function that reads the person from a trusted proxy's header."""

    def identify(request: Request) -> str | None:
        names = request.headers.getlist(header)
        is_trusted = request.client is not None and request.client.host in proxies
        return names[0] if is_trusted and len(names) == 1 else None

    return identify


def parse_fields(given: bytes) -> dict[str, str]:
    """Return the fields of a query or form. Duplicate fields are refused."""
    try:
        text = given.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:  # also invalid UTF-8
        raise Refusal(400, "The form cannot be read.") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise Refusal(400, "The form contains a field twice.")
    for name, value in pairs:
        longest = LONGEST_VALUE if name in _LONG else LONGEST_FIELD
        if len(value) > longest:
            raise Refusal(413, f"A field has more than {longest:,} characters. Nothing was changed.")
    return dict(pairs)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Reading stops at the maximum size."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Refusal(415, "The form has an unexpected content type.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY:
                raise Refusal(413, f"The form has more than {MOST_BODY:,} bytes. Nothing was changed.")
    except ClientDisconnect:
        raise Refusal(400, "The form was not received completely. Nothing was changed.") from None
    return parse_fields(bytes(body))


def secret_of(given: str | bytes | None) -> bytes:
    """Return the key of forms: a random one if none is given."""
    if given is None:
        return secrets.token_bytes(32)
    secret = given.encode() if isinstance(given, str) else bytes(given)
    if len(secret) < 16:
        raise InvalidInput("secret must have at least 16 bytes, the same in all processes that serve the page")
    return secret


def status_of(error: KeelError) -> int:
    """Return the HTTP status for an error of Keel."""
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)
