"""A web page for a store: decide requests, inspect threads and fork them. It runs no graph and deletes nothing."""

from langgraph_keel.web.app import keel_app

__all__ = ["keel_app"]
