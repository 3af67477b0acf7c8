"""Run the tests of LangGraph's and dependent packages, with their and Keel's savers.

    python tests/write.py suites [--saver keel_files] [PACKAGE ...]

Those of dependent packages need `pip install -r tests/upstream/requirements.txt`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import servers

from upstream.stand_in import BACKENDS
from upstream.suite import (
    LANGGRAPH,
    PACKAGES,
    STORES,
    STORES_UPON_IT,
    UPON_IT,
    Outcome,
    UpstreamUnavailableError,
    compare,
)

SUITES = {suite.title: suite for suite in (LANGGRAPH, *PACKAGES, *STORES, *UPON_IT, *STORES_UPON_IT)}
CACHE = Path(__file__).parents[2] / ".pytest_cache" / "d" / "upstream"  # shared with pytest's cache


def counts(outcome: Outcome) -> str:
    return f"{sum(outcome.passed.values()) + len(outcome.idle):6} {len(outcome.failed):6}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="*", help=f"any of {', '.join(SUITES)}; by default each")
    # A saver that does I/O, so that a test under blockbuster has something to detect.
    parser.add_argument("--saver", choices=BACKENDS, default="keel_sqlite", help="in the place of InMemorySaver")
    asked = parser.parse_args()
    if unknown := [name for name in asked.package if name not in SUITES]:
        parser.error(f"there is no {', '.join(unknown)}")
    cache = Path(os.environ.get("KEEL_UPSTREAM_CACHE", CACHE))
    is_good = True
    print(f"{'':40} as it is: passed failed   with Keel: passed failed left out")
    with servers.postgres() as postgres, servers.redis() as redis:
        os.environ[servers.SHARED["PostgreSQL"]], os.environ[servers.SHARED["Redis"]] = postgres.url, redis.url
        for suite in [SUITES[name] for name in asked.package or SUITES]:
            try:
                found = compare(suite, cache, asked.saver)
            except UpstreamUnavailableError as error:
                print(f"{suite.title:40} not run: {error}", flush=True)
                is_good = False
                continue
            name, out = f"{suite.title} {suite.version}", len(found.ours.excluded)
            print(f"{name:40} {'':9} {counts(found.theirs)} {'':12} {counts(found.ours)} {out:8}", flush=True)
            for test, why in found.only_ours.items():
                print(f"    only with Keel: {test}\n        {why}", flush=True)
            is_good = is_good and not found.only_ours
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
