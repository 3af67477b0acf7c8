"""`keel web`: a web page for deciding requests and inspecting threads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from langgraph_keel.cli.commands import TENANT
from langgraph_keel.cli.options import DEFAULT_URL, Url, open_store, open_to_change
from langgraph_keel.engine.audit import check_by
from langgraph_keel.errors import InvalidInput

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

By = Annotated[
    str | None,
    typer.Option(
        "--by",
        envvar="KEEL_REVIEWER",
        metavar="NAME",
        help="The reviewer who decides on this page. Without it, the page is read-only.",
    ),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Allow no decisions: the store is opened read-only.")]
TenantName = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Show only this tenant's data.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65_535, help="The port; 0 for any free port.")]
UserHeader = Annotated[
    str | None,
    typer.Option("--user-header", metavar="NAME", help="The header in which the trusted proxy names the person."),
]
Proxies = Annotated[
    list[str] | None,
    typer.Option("--trusted-proxy", metavar="IP", help="The address of the trusted proxy. Repeatable."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Another host name of the page. Repeatable."),
]


def web(
    url: Url = DEFAULT_URL,
    by: By = None,
    read_only: ReadOnly = False,
    tenant: TenantName = None,
    host: Host = "127.0.0.1",
    port: Port = 8722,
    user_header: UserHeader = None,
    trusted_proxy: Proxies = None,
    allow_host: Hosts = None,
) -> None:
    """Serve a web page for deciding requests and inspecting threads, until stopped.

    The page can be reached from this machine only, with the printed link. On any other address it needs a proxy in
    front that signs people in: --user-header and --trusted-proxy. It runs no graph.

    Example: `keel web --by maria`
    """
    try:
        import uvicorn

        from langgraph_keel.web.app import KeelApp
        from langgraph_keel.web.security import LOOPBACK, Guard, from_proxy
    except ImportError as error:
        raise InvalidInput(
            "keel web needs Starlette and uvicorn: pip install 'starlette>=0.46' 'uvicorn>=0.30' (Keel's extra 'web'): "
            f"{error}"
        ) from None
    check_by(by)
    if bool(user_header) != bool(trusted_proxy):
        raise InvalidInput(
            "--user-header and --trusted-proxy need each other: the header of any other sender is not trusted"
        )
    if user_header and by:
        raise InvalidInput(
            "--by names one reviewer, and --user-header names one for each request: give only one of them"
        )
    if host not in _LOOPBACK and not user_header:
        raise InvalidInput(
            f"--host {host}: other machines could reach this page. Put a proxy that signs people in in front of it, "
            "and name it with --user-header and --trusted-proxy"
        )
    if tenant is not None:
        TENANT.set(tenant)
    only_shows = read_only or not (by or user_header)
    guard = Guard(
        identify=from_proxy(user_header or "", trusted_proxy or ()),
        hosts=frozenset((*LOOPBACK, *(name.lower() for name in allow_host or ()))),
        read_only=only_shows,
        login=not user_header,
        by=by or "",
    )
    opened = open_store(url, read_only=True) if only_shows else open_to_change(url)
    with opened as saver, _listen(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        at = f"http://{name}:{listening.getsockname()[1]}"
        typer.echo(f"Open {at}/login?token={guard.token}" if guard.login else f"Listening on {at}, behind the proxy")
        if only_shows and not read_only:
            typer.echo("The page is read-only. To decide requests, name the reviewer: keel web --by NAME")
        typer.echo("Press Ctrl-C to stop.")
        # No access log: the addresses contain thread ids, and the first one contains the token.
        options: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
        options |= {"proxy_headers": False, "lifespan": "off", "timeout_graceful_shutdown": 3}
        uvicorn.Server(uvicorn.Config(KeelApp(saver, guard), **options)).run(sockets=[listening])


@contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InvalidInput(f"cannot listen on {host}, port {port} ({error}): give another --port, or 0") from None
    with listening:
        yield listening
