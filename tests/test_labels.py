from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from partlabel import from_states, lists_from_states, states_from_lists, to_states
from partlabel.errors import LabelValueError, PartlabelError

NUMBER_OF = {
    "states": {1: 1, -1: -1, 0: 0},
    "reference": {1: 1, -1: 0, 0: -1},
    "nan": {1: 1, -1: 0, 0: math.nan},
}
ANY_SHAPE = hnp.arrays(
    np.int8, hnp.array_shapes(max_dims=2, max_side=6), elements=st.integers(-1, 1)
)
TWO_DIMENSIONS = st.tuples(st.integers(0, 5), st.integers(1, 6))


@pytest.mark.parametrize("convention", NUMBER_OF)
@given(states=ANY_SHAPE)
def test_each_state_has_its_number_and_comes_back(convention: str, states: np.ndarray) -> None:
    numbers = from_states(states, convention=convention)
    for state, number in zip(states.flat, numbers.flat, strict=True):
        expected = NUMBER_OF[convention][int(state)]
        assert number == expected or (math.isnan(expected) and math.isnan(number))
    back = to_states(numbers, convention=convention)
    assert back.dtype == np.int8
    assert np.array_equal(back, states)


def test_reference_and_states_differ_by_swapping_zero_and_minus_one() -> None:
    values = [1, 0, -1]
    assert to_states(values, convention="states").tolist() == [1, 0, -1]
    assert to_states(values, convention="reference").tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("values", "convention", "place", "fits"),
    [
        ([[1, 0], [0, -1]], "nan", "[1, 1]", ["'states'", "'reference'"]),
        ([1, 0, math.nan], "reference", "[2]", ["'nan'"]),
        ([1, 0, math.nan], "states", "[2]", ["'nan'"]),
        ([1, 2], "states", "[1]", ["no convention has all these values (1, 2)"]),
        ([1, -1, math.nan], "nan", "[1]", ["no convention"]),
    ],
)
def test_a_value_outside_the_convention_is_refused_and_a_fitting_one_named(
    values: list[float], convention: str, place: str, fits: list[str]
) -> None:
    with pytest.raises(LabelValueError) as caught:
        to_states(values, convention=convention)
    assert place in str(caught.value)
    assert repr(convention) in str(caught.value)
    for text in fits:
        assert text in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, PartlabelError)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16, np.float64])
def test_any_number_type_is_taken(dtype: type) -> None:
    assert to_states(np.array([1, 0], dtype), convention="reference").tolist() == [1, -1]


def test_text_is_not_a_label() -> None:
    with pytest.raises(LabelValueError, match="must be numbers"):
        to_states(["1", "0"], convention="nan")


def test_an_unknown_convention_is_a_value_error_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"\['nan', 'reference', 'states'\], got 'guess'"):
        to_states([1], convention="guess")


@given(states=hnp.arrays(np.int8, TWO_DIMENSIONS, elements=st.integers(-1, 1)))
def test_lists_come_back(states: np.ndarray) -> None:
    positives, negatives = lists_from_states(states)
    assert [len(row) for row in positives] == [int((row == 1).sum()) for row in states]
    again = states_from_lists(positives, negatives, classes=states.shape[1])
    assert np.array_equal(again, states)


def test_without_negatives_the_positives_are_complete() -> None:
    assert states_from_lists([[1]], None, classes=3).tolist() == [[-1, 1, -1]]


def test_lists_that_contradict_or_do_not_fit_are_refused() -> None:
    with pytest.raises(
        LabelValueError, match="image 1: class 2 is listed as present and as absent"
    ):
        states_from_lists([[], [2]], [[], [2]], classes=3)
    with pytest.raises(LabelValueError, match=r"image 0: class 3 is outside 0\.\.2"):
        states_from_lists([[3]], [[]], classes=3)
    with pytest.raises(ValueError, match="negatives has 0 images, positives has 1"):
        states_from_lists([[1]], [], classes=3)
    with pytest.raises(ValueError, match="2 dimensions"):
        lists_from_states([1, 0])
