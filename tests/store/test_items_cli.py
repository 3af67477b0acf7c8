"""`keel store`: its output, its exit codes, and versions that are not overwritten."""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cli_threads import EVIL, RAW, keel, keel_json
from support.places import Place
from typer.testing import CliRunner

from langgraph_keel import InvalidInput, Keyring, open_saver
from langgraph_keel.cli import app
from langgraph_keel.cli.store import namespace_of, word_of
from langgraph_keel.keys.keyring import new_key, parse_keys
from langgraph_keel.store.files import ItemFiles
from langgraph_keel.store.items import Items
from langgraph_keel.testing.rig import at, checkpoint_of

ADA = ("memories", "ada")
SEAT = {"kind": "preference", "text": "a window seat\nsince 2019"}
FILL: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (("board",), "offer-7", {"price": 3, "from": {"city": "Oslo"}}),
    (("a/b", "100%2F", EVIL), f"odd {EVIL}\n", {"n": 3, "text": EVIL}),
    (ADA, "seat", SEAT),
    (ADA, "diet", {"kind": "preference", "text": "no nuts"}),
]


def fill(saver: Any) -> None:
    saver.put(at("trip"), checkpoint_of("1", {"n": "x"}, channel_versions={"n": 1}), {}, {"n": 1})
    for namespace, key, value in FILL:
        saver.store().put(namespace, key, value)


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, str]:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url) as saver:
        fill(saver)
    return "--url", url


def items_of(url: str) -> dict[tuple[str, ...], Any]:
    with open_saver(url, read_only=True) as saver:
        return {(*each.namespace, each.key): each for each in saver.store().search((), limit=1000)}


# -- namespaces as words ----------------------------------------------------------------------------------------------


@given(st.lists(st.text("a/%2F5fé\n", min_size=1), min_size=1))
def test_a_namespace_round_trips_through_its_text(labels: list[str]) -> None:
    assert namespace_of(word_of(labels)) == tuple(labels)
    assert "/" not in word_of(labels[:1])


def test_namespaces_are_parsed_from_text() -> None:
    assert namespace_of("memories/a%2fb/100%/%252F") == ("memories", "a/b", "100%", "%2F")
    assert namespace_of("") == ()
    for wrong in ("/", "a//b", "a/", "a.b"):
        with pytest.raises(InvalidInput, match="is not a namespace"):
            namespace_of(wrong)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_ls_lists_namespaces_and_recently_changed_items_first(store: tuple[str, str]) -> None:
    shown = keel("store", "ls", *store).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "memories/ada\n" in shown
    assert "3 namespaces" in shown
    assert shown.index("no nuts") < shown.index("a window seat") < shown.index("offer-7")
    assert not RAW.search(shown)
    here = keel("store", "ls", "memories/ada", *store).stdout
    assert "namespace" not in here
    assert "offer-7" not in here
    found = keel_json("store", "ls", "--limit", "2", *store)
    assert [each["key"] for each in found["items"]] == ["diet", "seat"]
    assert found["items"][1] == found["items"][1] | {"namespace": [*ADA], "value": SEAT}
    assert found["more"] is True
    assert found["namespaces"] == sorted([[*ADA], ["a/b", "100%2F", EVIL], ["board"]])
    assert "--limit shows more" in keel("store", "ls", "-n", "2", *store).stdout
    assert "No items." in keel("store", "ls", "nothing", *store).stdout


def test_an_escaped_namespace_is_found(store: tuple[str, str]) -> None:
    word = word_of(("a/b", "100%2F"))
    assert word == "a%2Fb/100%252F"
    assert [each["value"]["n"] for each in keel_json("store", "ls", word, *store)["items"]] == [3]


def test_ls_index_prints_one_line_per_item(store: tuple[str, str]) -> None:
    day = items_of(store[1])[*ADA, "seat"].updated_at.date()
    shown = keel("store", "ls", "memories/ada", "--index", *store).stdout
    assert shown == f"- **diet**: no nuts ({day})\n- **seat**: a window seat ({day})\n"
    every = keel_json("store", "ls", "--index", *store)["index"].split("\n")
    assert len(every) == len(FILL)
    assert f'- **board/offer-7**: {{"price": 3, "from": {{"city": "Oslo"}}}} ({day})' in every
    assert not RAW.search("".join(every))


def test_search_accepts_json_or_text(store: tuple[str, str]) -> None:
    def keys(*words: str) -> list[str]:
        return [each["key"] for each in keel_json("store", "search", *words, *store)["items"]]

    assert keys("memories", "--filter", "kind=preference") == ["diet", "seat"]
    assert keys("--filter", "kind=preference", "--filter", "text=no nuts") == ["diet"]
    assert keys("--filter", 'n={"$gt": 2}') == [f"odd {EVIL}\n"]
    assert keys("--filter", "price=3") == ["offer-7"]
    assert keys("--filter", 'price="3"') == []
    for wrong in (("kind",), ("kind=a", "--filter", "kind=b")):
        assert "FIELD=VALUE" in keel("store", "search", "--filter", *wrong, *store, status=2).stderr
    assert "unknown operator" in keel("store", "search", "--filter", 'n={"$near": 2}', *store, status=2).stderr


def test_get_shows_the_value(store: tuple[str, str]) -> None:
    shown = keel("store", "get", "memories/ada", "seat", *store).stdout
    assert json.loads(shown[: shown.rindex("}") + 1]) == SEAT
    assert keel_json("store", "get", "memories/ada", "seat", *store)["value"] == SEAT
    missing = keel("store", "get", "memories/ada", "nothing", *store, status=1).stderr
    assert "no item 'nothing' in 'memories/ada'" in missing
    assert store[1] in missing


# -- changing ---------------------------------------------------------------------------------------------------------


def test_put_reports_its_effect(store: tuple[str, str]) -> None:
    put = ("store", "put", "memories/bob", "seat")
    assert keel(*put, '{"text": "aisle"}', *store).stdout == "made memories/bob seat\n"
    assert keel_json(*put, '{"text": "window"}', "--ttl", "2h", *store)["done"] == "changed"
    with open_saver(store[1]) as saver:
        assert [each.value for each in saver.store().search(("memories", "bob"))] == [{"text": "window"}]
        assert saver.engine.run(_ttl_of(saver, ("memories", "bob"), "seat")) == 120
    piped = CliRunner().invoke(app, [*put, "-", *store], input='{"text": "any"}')
    assert piped.exit_code == 0, piped.output
    assert items_of(store[1])["memories", "bob", "seat"].value == {"text": "any"}


def _ttl_of(saver: Any, namespace: tuple[str, ...], key: str) -> Any:
    found = yield from Items(saver.engine.session, OrderedDict()).read([(namespace, key)])
    return next(iter(found.values())).record.ttl


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("memories", "k", "{"), "is not json"),
        (("memories", "k", "[" * 100_000), "is not json"),
        (("memories", "k", "[1]"), "must be a mapping"),
        (("memories", "k", '{"a": NaN}'), "is nan"),
        (("", "k", "{}"), "empty"),
        (("langgraph/x", "k", "{}"), "langgraph"),
        (("a.b", "k", "{}"), "is not a namespace"),
        (("a", "k", "{}", "--ttl", "5"), "not a duration"),
    ],
)
def test_invalid_items_are_refused(words: tuple[str, ...], said: str, store: tuple[str, str]) -> None:
    before = items_of(store[1])
    assert said in keel("store", "put", *words, *store, status=2).stderr.lower().replace("\n", " ")
    assert items_of(store[1]) == before


def test_rm_asks_for_confirmation(store: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    rm = ("store", "rm", "memories/ada", "seat", *store)
    assert "--yes" in keel(*rm, status=2).stderr
    assert "--yes" in keel(*rm, "--json", status=2).stdout
    with monkeypatch.context() as at_a_terminal:
        stdin = type("Stdin", (), {"isatty": staticmethod(lambda: True)})
        at_a_terminal.setattr("langgraph_keel.cli.store.sys", type("Terminal", (), {"stdin": stdin}))
        no = CliRunner().invoke(app, rm, input="n\n")
    assert no.exit_code == 1
    assert "a window seat" in no.stderr
    assert "Nothing was removed." in no.stderr
    assert (*ADA, "seat") in items_of(store[1])
    assert keel(*rm, "--yes").stdout == "removed memories/ada seat\n"
    assert (*ADA, "seat") not in items_of(store[1])
    assert "no item" in keel(*rm, "--yes", status=1).stderr


def test_reading_does_not_create_a_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none.db'}"
    for words in (("ls",), ("search",), ("get", "a", "b"), ("export", str(tmp_path / "out")), ("rm", "a", "b", "-y")):
        keel("store", *words, "--url", url, status=1)
    assert [*tmp_path.iterdir()] == []


def test_tenant_option_shows_items_of_the_tenant(store: tuple[str, str]) -> None:
    with open_saver(store[1]) as saver:
        saver.for_tenant("acme").store().put(("theirs",), "k", {"n": 1})
    result = CliRunner().invoke(app, ["--tenant", "acme", "store", "ls", "--json", *store])
    assert [each["namespace"] for each in json.loads(result.stdout)["items"]] == [["theirs"]]
    assert ["theirs"] not in keel_json("store", "ls", *store)["namespaces"]


# -- files ------------------------------------------------------------------------------------------------------------


def exported(directory: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in directory.iterdir()}


@pytest.mark.parametrize("place", ["files", "postgres"], indirect=True)
def test_export_and_import_into_another_store(place: Place, store: tuple[str, str], tmp_path: Path) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    assert f"{len(FILL)} items written" in keel("store", "export", str(out), *store).stdout
    files = exported(out)
    assert all(name.isascii() and name == name.lower() and "/" not in name for name in files)
    (seat,) = (each for name, each in files.items() if name.startswith("memories-ada-seat-"))
    assert (seat["namespace"], seat["key"], seat["value"], seat["ttl"]) == ([*ADA], "seat", SEAT, None)
    there = ("--url", place.url)
    found = keel_json("store", "import", str(out), *there)
    assert found == {"made": len(FILL), "changed": 0, "same": 0, "kept": []}
    assert keel_json("store", "import", str(out), *there)["same"] == len(FILL)
    keel("store", "export", str(back), *there)
    assert exported(back) == files
    assert [each.dict() for each in items_of(place.url).values()] == [
        each.dict() for each in items_of(store[1]).values()
    ]


def test_export_of_a_namespace_needs_an_empty_directory(store: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    assert keel_json("store", "export", str(out), "memories", *store) == {"directory": str(out), "items": 2}
    assert {each["key"] for each in exported(out).values()} == {"seat", "diet"}
    assert out.stat().st_mode & 0o077 == 0
    assert "is not empty" in keel("store", "export", str(out), *store, status=2).stderr
    (tmp_path / "file").touch()
    assert "cannot write" in keel("store", "export", str(tmp_path / "file"), *store, status=2).stderr


def change(directory: Path, beginning: str, **fields: Any) -> Path:
    (path,) = directory.glob(f"{beginning}*")
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")
    return path


def test_an_import_overwrites_only_the_version_that_was_exported(store: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    keel("store", "export", str(out), *store)
    before = items_of(store[1])
    change(out, "memories-ada-seat", value={"text": "aisle"}, ttl=60)
    change(out, "memories-ada-diet", value={"text": "fish"})
    keel("store", "put", "memories/ada", "diet", '{"text": "all"}', *store)
    keel("store", "rm", "board", "offer-7", "--yes", *store)
    done = keel("store", "import", str(out), *store, status=1)
    assert "1 item created, 1 changed, 1 already the same" in done.stdout
    assert "memories/ada diet" in done.stdout
    after = items_of(store[1])
    assert after[*ADA, "diet"].value == {"text": "all"}
    assert after[*ADA, "seat"].value == {"text": "aisle"}
    assert after[*ADA, "seat"].created_at == before[*ADA, "seat"].created_at
    assert after[*ADA, "seat"].updated_at > before[*ADA, "seat"].updated_at
    assert after["board", "offer-7"].dict() == before["board", "offer-7"].dict()
    again = keel_json("store", "import", str(out), *store, status=1)
    assert again == {"made": 0, "changed": 0, "same": 3, "kept": [{"namespace": [*ADA], "key": "diet"}]}
    assert items_of(store[1]) == after


@pytest.mark.parametrize("expected", ["the version of the export", "none"])
def test_an_import_keeps_a_concurrent_change(expected: str, store: tuple[str, str], tmp_path: Path) -> None:
    with open_saver(store[1]) as saver, open_saver(store[1]) as rival:

        class Slow(ItemFiles):
            def _cell(self, *parts: Any) -> Any:
                rival.store().put(ADA, "seat", {"text": "mine"})
                return super()._cell(*parts)

        items = Slow(saver.engine.session, OrderedDict())
        page, after = saver.engine.run(items.page(ADA, ""))
        (seat,) = (each for each in page if each[0].key == "seat")
        if expected == "none":
            rival.store().delete(ADA, "seat")
        edited = seat[0]._replace(value={"text": "theirs"}), seat[1]
        assert saver.engine.run(items.bring([edited])) == ["kept"]
        assert after is None
        assert [each.value for each in saver.store().search(ADA, limit=1)] == [{"text": "mine"}]


def test_import_distinguishes_one_from_true(store: tuple[str, str], tmp_path: Path) -> None:
    keel("store", "put", "flags", "new", '{"is_on": 1}', *store)
    keel("store", "export", str(tmp_path / "out"), "flags", *store)
    change(tmp_path / "out", "flags", value={"is_on": True})
    assert keel_json("store", "import", str(tmp_path / "out"), *store)["changed"] == 1
    assert items_of(store[1])["flags", "new"].value["is_on"] is True


@pytest.mark.parametrize(
    "fields",
    [
        {"namespace": "memories"},
        {"namespace": ["a.b"]},
        {"key": 3},
        {"value": [1]},
        {"value": {"a": float("nan")}},
        {"ttl": -1},
        {"ttl": "long"},
        {"created": None},
        {"changed": "yesterday"},
        {"changed": "2026-01-01"},
        {"key": "seat"},
    ],
)
def test_an_invalid_file_is_named_and_nothing_is_imported(
    fields: dict[str, Any], store: tuple[str, str], tmp_path: Path
) -> None:
    out, new = tmp_path / "out", tmp_path / "new.db"
    keel("store", "export", str(out), *store)
    path = change(out, "memories-ada-diet", **fields)
    assert str(path) in keel("store", "import", str(out), "--url", f"sqlite:///{new}", status=2).stderr
    for text in ("", "[]", "3", "{}", "\x00", "[" * 100_000):
        path.write_text(text, encoding="utf-8")
        assert str(path) in keel("store", "import", str(out), "--url", f"sqlite:///{new}", status=2).stderr
    assert not new.exists()


def test_import_of_a_missing_directory_is_refused(store: tuple[str, str], tmp_path: Path) -> None:
    assert "cannot be read" in keel("store", "import", str(tmp_path / "none"), *store, status=2).stderr


# -- other commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_items_are_copied_to_a_server_and_back(place: Place, store: tuple[str, str], tmp_path: Path) -> None:
    back = f"files:{tmp_path / 'back'}"
    with open_saver(store[1]) as saver, place.open() as server, open_saver(back) as other:
        assert saver.moving.copy_to(server, shared=True).left == []
        assert server.moving.copy_to(other, shared=True).is_done
        assert [each.key for each in server.store().search(ADA, filter={"text": "no nuts"})] == ["diet"]
    assert items_of(back) == items_of(store[1])


@pytest.mark.parametrize("place", ["files", "postgres"], indirect=True)
def test_a_copy_includes_items_or_reports_them_as_missing(place: Place, store: tuple[str, str]) -> None:
    urls = (store[1], place.url)
    for options in ((), ("--dry-run",), ("--verify",)):
        assert "items" in keel_json("copy", *urls, *options)["left"]
    some = keel("copy", *urls, "--thread", "trip", "--with-shared").stdout
    assert "belongs to no thread: items. Copy all threads to include it" in some
    assert keel_json("copy", *urls, "--with-shared", "--verify", status=1)["differs"]
    assert keel_json("copy", *urls, "--with-shared")["left"] == []
    with place.open() as saver:
        copied = saver.store()
        assert {(*each.namespace, each.key): each for each in copied.search(())} == items_of(urls[0])
        assert [each.key for each in copied.search(("memories",), filter={"text": "no nuts"})] == ["diet"]
        assert keel_json("copy", *urls, "--with-shared", "--verify")["differs"] == {}
        copied.put(ADA, "diet", {"text": "other"})
    assert "items" in keel_json("copy", *urls, "--with-shared", "--verify", status=1)["differs"][""]
    assert keel_json("copy", *urls, "--with-shared", status=1)["kept"]


KEYS = [new_key(name).strip() for name in ("1", "2")]


@pytest.mark.parametrize("hide", [False, True])
def test_items_survive_key_renewal_and_a_copy_without_encryption(hide: bool, tmp_path: Path) -> None:
    def keys(*which: str) -> Keyring:
        return Keyring(*parse_keys(",".join(which), "KEYS"), hide_names=hide)

    one, two = KEYS
    urls = [f"sqlite:///{tmp_path / 'sealed.db'}", f"files:{tmp_path / 'plain'}"]
    with open_saver(urls[0], encryption=keys(one)) as saver:
        fill(saver)
        for n in range(120):  # more than a page, in another order if keys are hidden
            saver.labels.set(at("trip"), f"label {n}")
            saver.store().put(("many",), f"{n}", {"n": n})
        before = saver.store().search((), limit=200)
    assert keel("keys", "rotate", "--url", urls[0], KEEL_KEYS=f"{two},{one}").exit_code == 0
    assert keel("keys", "renew", "--url", urls[0], KEEL_KEYS=f"{two},{one}").exit_code == 0
    with open_saver(urls[0], encryption=keys(two)) as saver:
        assert saver.store().search((), limit=200) == before
        assert len(saver.store().search(("memories",), filter={"kind": "preference"})) == 2
    for options in ((), ("--verify",), ()):
        keel("copy", *urls, "--with-shared", "--target-keys", "none", *options, KEEL_KEYS=two)
    with open_saver(urls[1]) as saver:
        assert {each.key: each for each in saver.store().search((), limit=200)} == {each.key: each for each in before}
        assert len(saver.labels.list("trip")) == 120
        assert len(saver.store().search(("memories",), filter={"kind": "preference"})) == 2


def test_a_migration_encrypts_items_that_can_still_be_found(store: tuple[str, str]) -> None:
    before = items_of(store[1])
    keel("keys", "migrate", *store, KEEL_KEYS=KEYS[0])
    with open_saver(store[1], encryption=Keyring(*parse_keys(KEYS[0], "KEYS"))) as saver:
        assert {(*each.namespace, each.key): each for each in saver.store().search(())} == before
        assert [each.key for each in saver.store().search(ADA, filter={"text": "no nuts"})] == ["diet"]
    assert b"window seat" not in Path(store[1].removeprefix("sqlite:///")).read_bytes()


def test_removing_threads_keeps_items(store: tuple[str, str]) -> None:
    before = items_of(store[1])
    for words in (
        ("prune", "trip", "--yes"),
        ("delete", "trip", "--yes"),
        ("sweep",),
        ("check",),
        ("reclaim", "--full"),
    ):
        keel(*words, *store)
    assert keel_json("threads", *store)["threads"] == []
    assert items_of(store[1]) == before


def test_a_damaged_item_is_reported_and_the_others_are_copied(store: tuple[str, str], tmp_path: Path) -> None:
    with sqlite3.connect(store[1].removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE cells SET header = substr(header, 1, 20) WHERE rank = (SELECT min(rank) FROM cells)")
    assert "an item of the store" in keel("check", *store, status=1).stdout
    copied = keel("copy", store[1], f"files:{tmp_path / 'b'}", "--with-shared", status=1).stdout
    assert "thread ''" not in copied
    assert "checksum" in copied
    assert len(keel_json("store", "ls", "--url", f"files:{tmp_path / 'b'}")["items"]) == len(FILL) - 1
    assert len(keel_json("store", "ls", *store)["items"]) == len(FILL) - 1
    removed = keel_json("store", "rm", "board", "offer-7", "--yes", *store)["removed"]
    assert "does not decode" in removed["error"]
    keel("check", *store)
