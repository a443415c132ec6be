"""Search spaces: parameters, conditions and requirements; rows of columns are decoded to configurations."""

from trainwright.space.choice import Choice
from trainwright.space.conditions import all_of, any_of, equals, greater, less, not_, one_of
from trainwright.space.numeric import Beta, Float, Int, Normal
from trainwright.space.parameters import Constant, Derived
from trainwright.space.rules import require
from trainwright.space.space import Space

__all__ = [
    "Beta",
    "Choice",
    "Constant",
    "Derived",
    "Float",
    "Int",
    "Normal",
    "Space",
    "all_of",
    "any_of",
    "equals",
    "greater",
    "less",
    "not_",
    "one_of",
    "require",
]
