"""Shapes come from few buckets, so that few programs are compiled."""


def round_up(length: int, bucket: int) -> int:
    """The least power of two times `bucket` that holds `length`."""
    size = bucket
    while size < length:
        size *= 2
    return size
