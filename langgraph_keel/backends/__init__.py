"""The backends, which store checkpoints: a package for each. README.md describes how to choose one."""
