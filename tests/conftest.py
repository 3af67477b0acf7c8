"""Fixtures that several test modules share."""

from __future__ import annotations

import pytest
from cli_threads import made_store


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store with a waiting thread of an evil name, and a thread that was resumed and then forked."""
    return made_store(tmp_path_factory.mktemp("cli"))
