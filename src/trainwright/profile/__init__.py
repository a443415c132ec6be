"""A torch module and a sample become a chain of layers with time and bytes."""

from trainwright.profile.described import describe_transformer
from trainwright.profile.layer import Block, Layer, Stage, Transformer
from trainwright.profile.profile import Profile
from trainwright.profile.traces import Traces

__all__ = ["Block", "Layer", "Profile", "Stage", "Traces", "Transformer", "describe_transformer"]
