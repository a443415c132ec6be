"""Trials on a Ray cluster: actors and placement groups of Ray core, no part of Ray Tune or Ray Train."""

from trainwright.engine.ray.engine import Ray

__all__ = ["Ray"]
