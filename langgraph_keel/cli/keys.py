"""The commands for the keys of an encrypted store: `keel keys`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url, open_to_change, open_to_read
from langgraph_keel.cli.output import bar, print_answer
from langgraph_keel.keys.keyring import new_key

keys = typer.Typer(
    no_args_is_help=True, help="Manage the keys of an encrypted store: create, show, rotate, renew, migrate."
)


@keys.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key, such as the year.")],
    json: AsJson = False,
) -> None:
    """Create and print a master key, for `KEEL_KEYS` or a key file.

    The key is not stored: keep a copy.

    Example: `(umask 077 && keel keys new 2026 > keel.keys)`
    """
    key = new_key(name)
    print_answer({"name": name, "key": key}, Text(key), as_json=json)


@keys.command("show")
def show(url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show which master key a store needs, and which one is current.

    No secret is shown.

    Checks that the keys open the store. Exit status 1 if they do not.

    Example: `KEEL_KEYS_FILE=keel.keys keel keys show`
    """
    with open_to_read(url) as saver:
        found = saver.keys.list()
    print_answer(found.to_dict(), str(found), as_json=json)
    if found.fault:
        raise typer.Exit(1)


@keys.command("rotate")
def rotate(url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Make the first key of the keyring the master key of a store.

    The keyring is the list of keys in KEEL_KEYS_FILE or KEEL_KEYS. Runs continue; no record is rewritten.

    An attacker with the old key and a copy of the store can still read later copies: see `keel keys renew`.

    Example: `KEEL_KEYS_FILE=keel.keys keel keys rotate`
    """
    with open_to_change(url) as saver:
        found = saver.keys.rotate()
    was = "already" if found.is_current else f"now; it was {found.needed!r}"
    said = f"The master key is {found.current!r} {was}."
    print_answer({"before": found.needed, "now": found.current}, said, as_json=json)


@keys.command("renew")
def renew(url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Rotate the master key, and give the store and each thread a new key.

    The new keys are for later writes. Runs continue.

    An attacker with the old master key and a copy of the store cannot read later writes. Existing records are not
    encrypted again. After an interruption, run it again to continue. Exit status 1 if keys of a thread cannot be read.

    Example: `KEEL_KEYS_FILE=keel.keys keel keys renew`
    """
    with open_to_change(url) as saver, bar("Renewing keys", quiet=json, keeps=True) as tell:
        done = saver.keys.renew(on_progress=tell)
    print_answer(done.to_dict(), _report(done), as_json=json)
    if done.failed:
        raise typer.Exit(1)


@keys.command("migrate")
def migrate(
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Then run `keel reclaim --full`, which blocks other processes.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also process threads that were migrated before.")] = False,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Encrypt all plain-text data in a store.

    Before the migration, all programs must use keyrings with `migrate=True`. Runs continue. After an interruption, run
    it again to continue. Exit status 1 if some data could not be read; it is left as it is.

    Example: `KEEL_KEYS_FILE=keel.keys keel keys migrate`
    """
    with open_to_change(url, migrate=True) as saver, bar("Sealing threads", quiet=json, keeps=True) as tell:
        done = saver.keys.migrate(again=again, on_progress=tell)
        space = saver.retention.reclaim_space(full=True) if reclaim else None
    freed = str(space) if space else "Freed space may still hold plain text until `keel reclaim --full`."
    answer = done.to_dict() | {"reclaimed": space and space.to_dict()}
    print_answer(answer, f"{_report(done)}\n{freed}", as_json=json)
    if not done.is_done:
        raise typer.Exit(1)


def _report(done: Any) -> str:
    return "\n".join([str(done), *(f"  {thread_id!r}: {why}" for thread_id, why in done.failed.items())])
