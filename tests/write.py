"""Update files that are generated from the code: `python tests/write.py` with one of these words.

    commands            the reference of the commands, in langgraph_keel/cli/README.md
    situations          the table of the statuses of a thread, in langgraph_keel/README.md
    surface             tests/public_surface.json: the interfaces that programs and scripts rely on
    notebooks           runs the notebooks, and saves their outputs
    golden v2           stores of every backend, as this version writes them (see CONTRIBUTING.md before)
    catching [STORE]    prints the tests of the contract that fail on each store that is broken on purpose
    suites [PACKAGE]    prints the tests of LangGraph's and dependent packages that fail with Keel's savers only

With `--check`, `commands`, `situations` and `surface` write nothing; the exit status reports whether they would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).parent
PROGRAMS = {"golden": "golden", "catching": "broken", "suites": "upstream"}


def write(path: Path, text: str, *, only_check: bool) -> None:
    if only_check:
        sys.exit(path.read_text(encoding="utf-8") != text)
    path.write_text(text, encoding="utf-8")


def main(what: str, *words: str, only_check: bool) -> None:
    """The imports are here: they need the paths below, and some of them start servers."""
    if what == "commands":
        import test_docs

        page = test_docs.COMMANDS_PAGE
        write(page, test_docs.with_reference(page.read_text(encoding="utf-8")), only_check=only_check)
    elif what == "situations":
        import asyncio

        from support import places, situations

        with TemporaryDirectory() as directory:
            rows = asyncio.run(situations.rows_of(places.file_place(Path(directory)), "sync"))
        text = situations.PAGE.read_text(encoding="utf-8")
        write(situations.PAGE, situations.with_table(text, rows), only_check=only_check)
    elif what == "surface":
        import test_public_surface

        with TemporaryDirectory() as directory:
            text = test_public_surface.written(test_public_surface.made(Path(directory)))
        write(test_public_surface.SNAPSHOT, text, only_check=only_check)
    elif what == "notebooks":
        import test_notebooks

        test_notebooks.save()
    elif what in PROGRAMS:
        paths = os.pathsep.join(map(str, [TESTS.parent, TESTS]))
        command = [sys.executable, "-m", PROGRAMS[what], *words]
        sys.exit(subprocess.run(command, cwd=TESTS, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    given = [word for word in sys.argv[1:] if word != "--check"]
    main(*given or [""], only_check="--check" in sys.argv)
