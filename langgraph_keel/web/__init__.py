"""A web page for a store: decide requests, inspect and fork threads."""

try:
    from langgraph_keel.web.app import keel_app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "starlette":
        error.msg = "the web page needs Starlette: pip install 'starlette>=0.46' (Keel's extra 'web')"
    raise

__all__ = ["keel_app"]
