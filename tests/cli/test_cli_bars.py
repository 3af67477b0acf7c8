"""The progress bar of long work is shown only to a person at a terminal."""

from __future__ import annotations

import pytest

from langgraph_keel.cli import output as bars


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat standard error as a terminal."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("terminal")
def test_a_bar_of_long_work_is_shown_and_erased(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "PATIENCE", -1)
    assert list(bars.with_bar("abc", "Counting")) == ["a", "b", "c"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "Counting" in err
    assert "2/3" in err
    assert err.rstrip().endswith("\x1b[2K")


@pytest.mark.usefixtures("terminal")
def test_quick_work_shows_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(bars.with_bar("abc", "Counting")) == ["a", "b", "c"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [True, False])
def test_no_bar_is_shown_without_a_terminal_or_when_quiet(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "PATIENCE", -1)
    if quiet:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(bars.with_bar("abc", "Counting", quiet=quiet)) == ["a", "b", "c"]
    assert capfd.readouterr() == ("", "")
