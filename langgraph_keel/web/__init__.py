"""A web page for a store: decide requests, inspect and fork threads."""

from langgraph_keel.web.app import keel_app

__all__ = ["keel_app"]
