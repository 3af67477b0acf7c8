"""Stores that are wrong on purpose, each in one clause of the contract: the contract must catch every one."""
