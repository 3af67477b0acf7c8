"""Who may see the page and act on it: hosts, sessions, origins, tokens of forms, sizes and headers.

A request is refused here before it reaches a page. A form carries a token that is bound to its session and its subject.
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
"""The names by which a browser reaches a page on its own machine."""
MOST_BODY = 1 << 20
"""Bytes of a form, at most."""
MOST_FIELDS, LONGEST_FIELD, LONGEST_VALUE = 20, 2_000, 500_000
"""Fields of a form or query, and characters of a field, and of arguments or an answer, at most."""
_LONG = ("args", "value")
_FORM = "application/x-www-form-urlencoded"
HEADERS: Mapping[str, str] = {
    # Styles stand in the elements that Keel draws: attributes are allowed, and elements of another origin are not.
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
"""The status of a page by the error that it shows, the first that fits."""
Identify: TypeAlias = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Returns the name of the person who has sent a request; `None` if it is not known, and the request is refused."""


class Refusal(Exception):
    """A request that is refused: with a status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks requests.

    Attributes:
        identify: Names the person; with `login`, it is not asked.
        hosts: The names by which the page may be called, without ports.
        read_only: Whether all forms are refused.
        secret: The key of sessions and tokens.
        login: Whether the page has a session of its own, which a token in a URL opens.
        by: With `login`, the person whose session that is.
    """

    identify: Identify
    hosts: Collection[str] = LOOPBACK
    read_only: bool = False
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    login: bool = False
    by: str = ""

    @property
    def token(self) -> str:
        """The token that opens a session."""
        return self.sign("login")

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers send cookies to all ports of a host, so each server has one of its own."""
        return f"keel-{self.sign('cookie')[:12]}"

    def sign(self, *parts: str) -> str:
        """Return a keyed hash of some texts, 64 hexadecimal digits."""
        # With the length of each, so that no text reaches into the next one.
        data = b"".join(f"{len(part)}:{part}".encode(errors="surrogatepass") for part in parts)
        return hmac.digest(self.secret, data, sha256).hex()

    def check_host(self, request: Request) -> None:
        """Refuse a request that names another host: a page of another origin may have made its name point here."""
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self.hosts or len(request.headers.getlist("host")) != 1:
            raise Refusal(400, "This page is not served under that host name. Name it in hosts=, or with --allow-host.")

    def begin(self, request: Request, query: Mapping[str, str]) -> Response:
        """Exchange the token of a URL for a session."""
        if not self.login or not _is_same(query.get("token", ""), self.token):
            raise Refusal(403, "This link is not valid. Use the link that `keel web` has printed when it was started.")
        name = secrets.token_hex(16)
        response = RedirectResponse("./", 303)
        path, is_secure = f"{request.scope.get('root_path', '')}/", request.url.scheme == "https"
        value = f"{name}.{self.sign('session', name)}"
        response.set_cookie(self.cookie, value, path=path, httponly=True, samesite="strict", secure=is_secure)
        return response

    async def find_person(self, request: Request) -> tuple[str, str]:
        """Return who has sent a request, and their session, to which the tokens of forms are bound."""
        if self.login:
            value = request.cookies.get(self.cookie, "")
            name, _, signed = value.partition(".")
            if not _is_same(signed, self.sign("session", name)):
                raise Refusal(401, "You are not signed in here. Use the link that `keel web` has printed.")
            return self.by, value
        found = self.identify(request)
        by = await found if isawaitable(found) else found
        if by is None:
            raise Refusal(401, "You are not signed in.")
        if not isinstance(by, str) or not is_name(by):
            raise Refusal(403, "The name under which you are signed in cannot be recorded.")
        return by, f"by:{by}"

    def check_origin(self, request: Request) -> None:
        """Refuse a form that a page of another origin has sent."""
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
        is_ours = urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
        if site != "same-origin" and not (site is None and is_ours):
            raise Refusal(403, "This form was not sent by this page. Open the page again, and send it from there.")

    def check_form(self, form: Mapping[str, str], session: str, *subject: str) -> None:
        """Refuse a form without the token of its session and subject, and each form of a page that only shows."""
        if self.read_only:
            raise Refusal(403, "This page only shows. Nothing was changed.")
        if not _is_same(form.get("token", ""), self.sign("form", session, *subject)):
            raise Refusal(403, "This form is not of your session. Open the page again, and send it from there.")


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def from_proxy(header: str, proxies: Collection[str]) -> Identify:
    """Return what reads the person from a header, if a trusted proxy has sent the request."""

    def identify(request: Request) -> str | None:
        names = request.headers.getlist(header)
        is_trusted = request.client is not None and request.client.host in proxies
        return names[0] if is_trusted and len(names) == 1 else None

    return identify


def parse_fields(given: bytes) -> dict[str, str]:
    """Return the fields of a query or form. A field that is given twice is refused."""
    try:
        text = given.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:  # of UTF-8, too
        raise Refusal(400, "The form cannot be read.") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise Refusal(400, "The form has a field twice.")
    for name, value in pairs:
        longest = LONGEST_VALUE if name in _LONG else LONGEST_FIELD
        if len(value) > longest:
            raise Refusal(413, f"A field has more than {longest:,} characters. Nothing was changed.")
    return dict(pairs)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, of which no more is read than it may have."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Refusal(415, "The form has another content type than a form of this page.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY:
                raise Refusal(413, f"The form has more than {MOST_BODY:,} bytes. Nothing was changed.")
    except ClientDisconnect:
        raise Refusal(400, "The form was not sent to its end. Nothing was changed.") from None
    return parse_fields(bytes(body))


def secret_of(given: str | bytes | None) -> bytes:
    """Return the key of forms: a random one if none is given."""
    if given is None:
        return secrets.token_bytes(32)
    secret = given.encode() if isinstance(given, str) else bytes(given)
    if len(secret) < 16:
        raise InvalidInput("secret must have at least 16 bytes, equal in all processes that serve the page")
    return secret


def status_of(error: KeelError) -> int:
    """Return the status that fits an error of Keel."""
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)
