"""What holds for every space: round trips, legality, identity, activity."""

import json
import math
import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import generators, spaces
from trainwright.space import Float, Space

some = settings(max_examples=40)


def same(first, second):
    return np.array_equal(first, second, equal_nan=True)


def close(space, first, second):
    """Equal but for the last bits of continuous floats."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        parameter = space.parameters[name]
        if isinstance(parameter, Float) and parameter.step is None:
            scale = abs(value) if parameter.log else parameter.high - parameter.low
            assert abs(value - second[name]) <= 1e-12 * max(abs(value), scale)
        elif name != "total":  # derived: as exact as what it is computed from
            assert repr(value) == repr(second[name])
    return True


@some
@given(spaces(), generators)
def test_decoding_and_encoding_give_back_every_configuration(space, generator):
    U = space.sample(generator, 8)
    for row, params in zip(U, space.decode(U), strict=True):
        again = space.encode(params)
        assert np.array_equal(np.isnan(row), np.isnan(again))
        assert np.allclose(row, again, rtol=0, atol=1e-12, equal_nan=True)
        discrete = [index for index, column in enumerate(space.columns) if column.points is not None]
        assert same(row[discrete], again[discrete])
        assert close(space, params, space.decode(again[None, :])[0])


@some
@given(spaces(), generators)
def test_many_are_encoded_as_each_is(space, generator):
    many = space.decode(space.sample(generator, 8))
    assert same(space.encode_all(many), np.array([space.encode(params) for params in many]))
    assert space.encode_all([]).shape == (0, space.dimension)


@some
@given(spaces(), generators)
def test_every_sample_is_legal_and_passes_check(space, generator):
    U = space.sample(generator, 8)
    assert U.shape == (8, space.dimension)
    assert space.legal(U).all()
    for params in space.decode(U):
        assert space.check(params) == []


@some
@given(spaces(), generators)
def test_settling_is_idempotent_and_keeps_encoded_rows(space, generator):
    U = space.settle(space.latent(generator, 8))
    assert same(space.settle(U), U)
    for params in space.decode(U):
        row = space.encode(params)[None, :]
        assert same(space.settle(row), row)
        assert space.row_keys(space.settle(row)) == space.row_keys(row)


@some
@given(spaces(), generators)
def test_latent_rows_have_a_value_everywhere_and_settle_to_the_same_values_where_active(space, generator):
    L = space.latent(generator, 8)
    assert not np.isnan(L).any()
    U = space.settle(L)
    for index, column in enumerate(space.columns):
        active = ~np.isnan(U[:, index])
        if column.points is None:
            assert np.array_equal(U[active, index], L[active, index])
        else:
            top = column.points - 1 if column.kind == "choice" else 1
            assert ((U[active, index] >= 0) & (U[active, index] <= top)).all()
            assert len(np.unique(U[active, index])) <= column.points


@some
@given(spaces(), generators)
def test_inactive_parameters_are_never_in_params_and_lie_outside_in_the_model_matrix(space, generator):
    U = space.sample(generator, 8)
    M = space.model_matrix(U)
    assert not np.isnan(M).any()
    for row, model, params in zip(U, M, space.decode(U), strict=True):
        for column, unit, number in zip(space.columns, row, model, strict=True):
            assert (column.name in params) == (not math.isnan(unit))
            outside = column.points if column.kind == "choice" else -1
            assert number == (outside if math.isnan(unit) else unit)


@some
@given(spaces(), generators)
def test_row_keys_are_equal_exactly_for_equal_rows(space, generator):
    U = space.sample(generator, 6)
    U = np.concatenate([U, U[::-1]])
    keys = space.row_keys(U)
    for first in range(len(U)):
        for second in range(len(U)):
            assert (keys[first] == keys[second]) == same(U[first], U[second])


@some
@given(spaces(), generators)
def test_configuration_keys_are_equal_exactly_for_equal_active_values(space, generator):
    found = [space.configuration(row) for row in space.sample(generator, 6)]
    for first in found:
        assert space.configuration_of(first.params).key == first.key
        for second in found:
            values = [{k: v for k, v in c.params.items() if k != "total"} for c in (first, second)]
            assert (first.key == second.key) == (json.dumps(values[0]) == json.dumps(values[1]))


@some
@given(spaces(), generators)
def test_json_and_pickle_keep_the_fingerprint_and_the_law(space, generator):
    again = Space.from_json(json.loads(json.dumps(space.to_json())))
    assert again == space
    assert again.fingerprint == space.fingerprint
    assert again.differences(space) == []
    assert pickle.loads(pickle.dumps(space)) == space
    p = generator.random((20, space.dimension))
    assert same(again.settle(again.quantile(p)), space.settle(space.quantile(p)))


@some
@given(spaces(), st.integers(0, 1000))
def test_equal_generators_give_equal_samples(space, seed):
    first, second = (space.sample(np.random.default_rng(seed), 7) for _ in range(2))
    assert same(first, second)
