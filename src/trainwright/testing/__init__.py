"""Conformance kits: the tests that every plug-in of a kind has to pass."""

from trainwright.testing.engine import EngineConformance

__all__ = ["EngineConformance"]
