"""Rounds sizes up to a small set of buckets, so that few programs are compiled."""


def round_up(length: int, bucket: int) -> int:
    """The smallest power of two times `bucket` that is at least `length`."""
    size = bucket
    while size < length:
        size *= 2
    return size


def round_to_eighth(length: int, bucket: int, *, down: bool = False) -> int:
    """`length` rounded up to one of few multiples of `bucket`; with `down`, rounded down.

    They are all multiples up to 16, and 8 an octave above.
    """
    count = length // bucket if down else -(-length // bucket)
    step = max(1, (1 << max(0, count - 1).bit_length()) // 16)
    return (count // step if down else -(-count // step)) * step * bucket
