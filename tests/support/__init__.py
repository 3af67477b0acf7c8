"""Helpers shared by several tests.

Those of one room are in its package, those of many rooms here.
"""
