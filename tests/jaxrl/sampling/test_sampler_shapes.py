"""The buckets of the sampler: enough room, little more, and few programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.sampling import sampler, warm_up, work
from tests.jaxrl import sampler_oracle as oracle


def setup(slots: int, prompt: int, length: int, bucket: int = 64) -> sampler.Setup:
    layout = sampler.SamplerConfig(slots=slots, bucket=bucket)
    return sampler.Setup(oracle.CONFIG, oracle.KEY, (0,), prompt, length, layout)


@pytest.mark.parametrize(
    ("slots", "length", "most"), [(512, 4096, 28), (512, 33_792, 44), (64, 1024, 16)]
)
def test_programs_are_few(slots, length, most):
    """Of decoding, which takes most of the time of compiling."""
    assert sum(map(len, setup(slots, 1024, length).shapes.values())) <= most


def test_partial_rollouts_take_no_more_than_their_length():
    """Any sequence may be read again from its last token: 33,792 tokens are not 65,536."""
    made = setup(512, 33_792, 33_792)
    assert 33_792 <= made.prompt_width == made.capacity <= 33_792 * 9 // 8


@given(
    st.integers(1, 700),
    st.integers(1, 40_000),
    st.integers(1, 40_000),
    st.sampled_from([16, 64, 100]),
    st.data(),
)
def test_there_is_room_and_a_way(slots, prompt, more, bucket, data):
    """From any shape to any other, by programs that `warm_up` compiles, through enough room."""
    made = setup(slots, prompt, prompt + more, bucket)
    assert made.sizes[-1] == slots and made.sizes == sorted(set(made.sizes))
    assert made.capacity >= max(made.max_length, made.prompt_width)
    needed = data.draw(st.integers(1, made.max_length))
    for size in made.sizes:
        assert made.shapes[size][-1] == made.capacity
        assert (
            needed <= made.width(size, needed) <= max(5 * needed, 4 * bucket, made.shapes[size][0])
        )
    shapes = [(size, width) for size in made.sizes for width in made.shapes[size]]
    start = data.draw(st.sampled_from(shapes))
    size = data.draw(st.sampled_from(made.sizes))
    end = size, made.width(size, needed)
    least = min(start[1], end[1])
    for shape in work.route(made, start, end):
        assert shape in warm_up.neighbours(made, *start) and shape[1] >= least
        start = shape
    assert start == end
