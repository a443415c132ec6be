"""Conformance kits: the tests that every plug-in of a kind has to pass."""

from trainwright.testing.combination import CombinationConformance
from trainwright.testing.engine import EngineConformance
from trainwright.testing.policy import PolicyConformance
from trainwright.testing.rule import RuleConformance
from trainwright.testing.searcher import SearcherConformance

__all__ = ["CombinationConformance", "EngineConformance", "PolicyConformance", "RuleConformance", "SearcherConformance"]
