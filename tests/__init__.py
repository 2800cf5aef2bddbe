"""What the tests share."""

import tempfile
from pathlib import Path

COMPILED = str(Path(tempfile.gettempdir()) / "jaxrl-tests-cache")
"""Where they keep compiled programs, unless JAX_COMPILATION_CACHE_DIR says otherwise."""
