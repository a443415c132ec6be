"""Profiles of models: what `trainwright.model` makes, under the names that programs use."""

from trainwright.model.describe.transformer import describe_transformer
from trainwright.model.profile import Profile, Traces

__all__ = ["Profile", "Traces", "describe_transformer"]
