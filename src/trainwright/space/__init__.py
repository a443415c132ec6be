"""Search spaces: parameters, conditions and requirements; rows of columns are decoded to configurations."""

from trainwright.space.checking import RuleViolation
from trainwright.space.choice import Choice
from trainwright.space.columns import Column
from trainwright.space.conditions import Condition, all_of, any_of, equals, greater, less, not_, one_of
from trainwright.space.configuration import Configuration
from trainwright.space.documents import parameter_from_json
from trainwright.space.fixed import Constant, Derived
from trainwright.space.numeric import Float, Int
from trainwright.space.parameters import Parameter
from trainwright.space.priors import Beta, Normal
from trainwright.space.requirements import Requirement, require
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
    "Requirement",
    "RuleViolation",
    "Space",
    "all_of",
    "any_of",
    "equals",
    "greater",
    "less",
    "not_",
    "one_of",
    "parameter_from_json",
    "require",
]
