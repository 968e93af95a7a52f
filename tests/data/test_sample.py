import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError
from brim.data.sample import Sample


def test_lists_become_read_only_arrays():
    sample = Sample(
        "a", [5, 6, 7], (0, 1, True), segment_ids=[1, 1, 2], arrays={"stage": [[1, 2], [3, 4]]}, scalars={"reward": 0.5}
    )
    assert sample.input_ids.dtype == np.int32
    assert sample.loss_mask.tolist() == [0, 1, 1]
    assert (sample.length, len(sample), sample.num_loss_tokens) == (3, 3, 2)
    assert sample.arrays["stage"].shape == (2, 2)
    with pytest.raises(ValueError, match="read-only"):
        sample.input_ids[0] = 1


def test_a_sample_cannot_be_changed():
    with pytest.raises(AttributeError):
        Sample(0, [1], [1]).id = 3  # type: ignore[misc]


def test_the_callers_array_stays_writable_and_apart():
    tokens = np.array([1, 2], np.int32)
    sample = Sample(0, tokens, [1, 1])
    tokens[0] = 9
    assert sample.input_ids.tolist() == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans())))
def test_a_sample_survives_pickling(pairs):
    sample = Sample("x", [token for token, _ in pairs], [learned for _, learned in pairs])
    again = pickle.loads(pickle.dumps(sample))
    assert again == sample
    assert again.num_loss_tokens == sum(learned for _, learned in pairs)


def test_samples_are_equal_if_everything_in_them_is():
    assert Sample(1, [1, 2], [0, 1]) == Sample(1, (1, 2), np.array([0, 1]))
    assert Sample(1, [1, 2], [0, 1]) != Sample(1, [1, 2], [1, 1])
    assert Sample(1, [1], [1]) != Sample(1, [1], [1], segment_ids=[1])
    assert Sample(1, [1], [1]) != "a sample"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", [1, 2], [1]), "loss_mask has 1 entries for 2 tokens"),
        (("a", [1, 2], [1, 1], [1]), "segment_ids has 1 entries for 2 tokens"),
        (("a", [1, 2], [1, 2]), "loss_mask holds 2; it may hold 0"),
        (("a", [1, 2], [1, 1], [2, 1]), "segment_ids go back"),
        (("a", [1, 2.5], [1, 1]), "input_ids holds float64 values"),
        (("a", [-1], [1]), "from -1 to -1"),
        (("a", [2**31], [1]), "must lie in 0..2147483647"),
        (("a", [[1]], [1]), "has shape"),
        (("a", [[1], [1, 2]], [1]), "not one flat row"),
        ((None, [1], [1]), "sample id None is a NoneType"),
        ((True, [1], [1]), "sample id True is a bool"),
    ],
)
def test_a_sample_that_is_not_one_is_an_error_that_says_why(arguments, message):
    with pytest.raises(DataError, match=message):
        Sample(*arguments)
