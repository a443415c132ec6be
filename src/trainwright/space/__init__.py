"""What may vary: parameters, conditions and requirements; columns in, configurations out."""

from trainwright.space.columns import Column
from trainwright.space.conditions import Condition, all_of, any_of, equals, greater, less, not_, one_of
from trainwright.space.configuration import Configuration
from trainwright.space.parameters import Choice, Constant, Derived, Float, Int, Parameter
from trainwright.space.priors import Beta, Normal
from trainwright.space.space import Space

__all__ = [
    "Beta",
    "Choice",
    "Column",
    "Condition",
    "Configuration",
    "Constant",
    "Derived",
    "Float",
    "Int",
    "Normal",
    "Parameter",
    "Space",
    "all_of",
    "any_of",
    "equals",
    "greater",
    "less",
    "not_",
    "one_of",
]
