"""Random legal spaces: any kind of parent, comparison, chain and requirement that may meet.

Space number n is a function of n alone, so that a failure is found again by its number.
"""

import numpy as np

from trainwright.randomness import rng
from trainwright.space import (
    Choice,
    Constant,
    Derived,
    Float,
    Int,
    Space,
    all_of,
    any_of,
    equals,
    greater,
    less,
    not_,
    one_of,
    require,
)
from trainwright.space.conditions import Condition
from trainwright.space.parameters import Parameter

__all__ = ["random_space"]


def random_space(number: int) -> Space:
    """Return legal space `number`: one to seven parameters, chains of conditions, perhaps a requirement."""
    generator = rng(0, "legal space", number)
    parameters: dict[str, Parameter] = {}
    for name in "abcdefg"[: int(generator.integers(1, 8))]:
        when = _condition(generator, parameters) if parameters and generator.random() < 0.6 else None
        parameters[name] = _parameter(generator, when)
    requirements = []
    numbers = [name for name, parameter in parameters.items() if isinstance(parameter, Float | Int)]
    if len(numbers) > 1 and generator.random() < 0.5:
        first, second = generator.choice(numbers, size=2, replace=False).tolist()
        parameters["total"] = Derived(f"{first} + {second}")
        # The sum of both middles, so that about half of all draws are legal.
        middle = sum((parameters[name].low + parameters[name].high) / 2 for name in (first, second))  # type: ignore[attr-defined]
        requirements.append(require(f"total <= {middle}"))
    if generator.random() < 0.2:
        parameters["fixed"] = Constant(3)
    return Space(*requirements, **parameters)


def _parameter(generator: np.random.Generator, when: Condition | None) -> Parameter:
    kind = int(generator.integers(8))
    low = float(np.round(generator.uniform(0.01, 5.0), 2))
    high = float(np.round(low + generator.uniform(0.5, 50.0), 2))
    if kind == 0:
        return Float(low, high, when=when)
    if kind == 1:
        return Float(low * 1e-4, high, log=True, when=when)
    if kind == 2:
        return Float(-1.0, 1.0, step=float(generator.choice([0.1, 0.25, 0.5])), when=when)
    if kind == 3:
        return Int(-3, int(generator.integers(-2, 30)), when=when)
    if kind == 4:
        return Int(1, int(generator.integers(2, 2000)), log=True, when=when)
    if kind == 5:
        return Int(0, 100, step=int(generator.choice([5, 10, 50])), when=when)
    values = ["u", 1, 2.5, None, True][: int(generator.integers(1, 6))]
    return Choice(*values, ordered=kind == 6, when=when)


def _condition(generator: np.random.Generator, known: dict[str, Parameter], depth: int = 2) -> Condition:
    kind = int(generator.integers(5)) if depth else 0
    if kind == 4:
        return not_(_condition(generator, known, depth - 1))
    if kind > 1:
        parts = [_condition(generator, known, depth - 1) for _ in range(int(generator.integers(1, 4)))]
        return (all_of if kind == 2 else any_of)(*parts)
    name = str(generator.choice(list(known)))
    parameter = known[name]
    ordered = not isinstance(parameter, Choice) or parameter.ordered
    comparison = int(generator.integers(4 if ordered else 2))
    values = [_value(generator, parameter) for _ in range(3)]
    if comparison == 0:
        return equals(name, values[0])
    if comparison == 1:
        return one_of(name, values)
    return (less if comparison == 2 else greater)(name, values[0])


def _value(generator: np.random.Generator, parameter: Parameter) -> object:
    """Return a value of a parameter: often a bound or what lies in the middle of its axis, as people choose them."""
    if isinstance(parameter, Choice):
        return parameter.values[int(generator.integers(len(parameter.values)))]
    assert isinstance(parameter, Float | Int)
    unit = float(generator.choice([0.0, 0.5, 1.0, generator.random()]))
    number = float(parameter.axis.to_numbers(np.array([unit]))[0])
    return int(number) if isinstance(parameter, Int) else number
