"""The backends, a package for each; README.md describes how to choose one."""
