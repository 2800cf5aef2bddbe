"""Files of lines that may be compressed."""

from __future__ import annotations

import lzma
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

ENDINGS = (".gz", ".bz2", ".xz", ".zst")
"""Endings of compressed files."""
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def opened(path: Path) -> BinaryIO:
    """A file to read, or what a compressed file holds in a temporary file without a name."""
    if path.suffix.lower() not in ENDINGS:
        return path.open("rb")
    import pyarrow

    plain = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        if path.suffix.lower() == ".xz":
            with lzma.open(path) as packed:
                shutil.copyfileobj(packed, plain)
        else:
            kind = _CODECS[path.suffix.lower()]
            with pyarrow.input_stream(str(path), compression=kind) as packed:
                while block := packed.read(1 << 20):
                    plain.write(block)
    except (OSError, lzma.LZMAError, EOFError) as error:
        plain.close()
        raise ValueError(f"{path} is not compressed as {path.suffix} is: {error}") from error
    plain.seek(0)
    return plain
