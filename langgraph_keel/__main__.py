"""`python -m langgraph_keel` is `keel`."""

from langgraph_keel.cli import main

if __name__ == "__main__":
    main()
