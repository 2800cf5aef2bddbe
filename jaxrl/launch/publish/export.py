"""`jaxrl export RUN_OR_MODEL --to hf|peft|gguf|atif --out DIR [--step N] [--push NAME]`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokenizers import Tokenizer

from jaxrl import json_file
from jaxrl.config import Config
from jaxrl.data.gguf import gguf_fields
from jaxrl.data.text import tokenizer_files, tokenizers
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.publish import model_card, trajectories
from jaxrl.launch.settings import flags
from jaxrl.mesh import mesh
from jaxrl.models import catalog, load, lora
from jaxrl.models.checkpoints import gguf_write, huggingface, peft
from jaxrl.models.checkpoints.forms import wrapped
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.record import account, storage
from jaxrl.rollout import policy
from jaxrl.types import Params


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """What is written, and where."""

    to: Literal["hf", "peft", "gguf", "atif"] = "hf"
    """Format: `hf` is a Hugging Face directory, adapters merged; `peft` is the adapters of a LoRA
    run; `gguf` is one file for llama.cpp; `atif` is the rollouts that a run has kept, as
    trajectories of agents."""
    out: str = ""
    """Directory to write; it must not exist, or be empty."""
    step: int | None = None
    """Checkpoint of the run; None: the newest. Of `atif`, the step of the rollouts; None: all."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the matrices in the files of `hf` and `gguf`."""
    shard_gb: float = 5.0
    """Largest safetensors file, in GB."""
    push: str = ""
    """Repository of the Hugging Face Hub to upload the directory to, ORGANISATION/NAME; empty:
    none. It is made if it is not there."""
    private: bool = False
    """Whether a repository that is made is private."""
    trust: bool = False
    """Accept functions of other packages that the run's config names; they are executed."""


class Source(NamedTuple):
    """A model to export."""

    name: str
    config: Config | None
    """Of the run; None for a model."""
    step: int | None
    """Of the run's checkpoint; None for a model."""
    model: DecoderConfig
    params: Params
    """Adapters on."""
    adapters: LoraConfig
    tokenizer: tokenizers.Tokenizer
    files: Path | None
    """What the tokenizer was read from: a GGUF file or a Hugging Face directory."""
    alphabet: str
    """Of a tokenizer of characters; empty where there are files."""


def main(argv: list[str]) -> int:
    """Write a run or a model for other programs."""
    usage, what = "jaxrl export RUN_OR_MODEL", "a run, a model or its directory"
    try:
        name, settings = flags.name_and_settings(ExportConfig(), argv, usage=usage, what=what)
        check_push(settings.push)
        directory = export(name, settings)
    except REFUSALS as error:
        return refused(error)
    print(f"wrote {directory}: {', '.join(sorted(p.name for p in directory.iterdir()))}")
    if settings.push:
        try:
            print(f"uploaded to {push(directory, settings.push, private=settings.private)}")
        except ConnectionError as error:
            print(f"jaxrl: {error}", file=sys.stderr)
            return 1
    return 0


def check_push(repository: str) -> None:
    """Refuse what cannot be uploaded to, before anything is written.

    Raises:
      ValueError: no name of a repository.
      ModuleNotFoundError: huggingface_hub is missing.
    """
    if repository and not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repository):
        raise ValueError(f"push={repository!r}: name a repository as ORGANISATION/NAME")
    if repository and importlib.util.find_spec("huggingface_hub") is None:
        raise ModuleNotFoundError(
            f"push={repository!r} needs huggingface_hub: pip install huggingface_hub"
        )


def push(directory: Path, repository: str, *, private: bool = False) -> str:
    """Upload a directory to the Hugging Face Hub; the address of the commit.

    Raises:
      ConnectionError: the Hub cannot be reached, or refuses; with the command that tries again.
    """
    import huggingface_hub
    from huggingface_hub import errors

    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=directory, commit_message="Upload by jaxrl export"
        )
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        lines = str(error).strip().splitlines()
        raise ConnectionError(
            f"{directory} is written, but was not uploaded ({lines[0] if lines else error!r}); "
            f"after `hf auth login`, run: hf upload {repository} {directory}"
        ) from error
    return commit.commit_url


def export(name: str, settings: ExportConfig) -> Path:
    """Write a run or a model to `settings.out`; the directory.

    Raises:
      FileNotFoundError: no such run, model or checkpoint.
      ValueError: the directory is not empty, or the format cannot hold the model; or a run has
        kept no rollouts.
    """
    out = check_target(settings.out)
    if settings.to == "atif":
        if settings.push:
            raise ValueError(
                f"push={settings.push!r}: to='atif' writes rollouts, which are no model; leave one "
                "of them out"
            )
        with _partial(out) as partial:
            trajectories.write(name, partial, settings.step)
        return out
    return write(open_source(name, settings.step, trust=settings.trust), settings)


def write(source: Source, settings: ExportConfig) -> Path:
    """Write a model to `settings.out`, whole or not at all; the directory.

    Raises:
      ValueError: the directory is not empty, or the format cannot hold the model.
    """
    out = check_target(settings.out)
    if source.model.labels and settings.to != "hf":
        raise ValueError(
            f"to={settings.to!r}: {source.name!r} is a reward model, whose score this format does "
            "not hold; export it with --to hf"
        )
    with _partial(out) as partial:
        {"hf": _write_hf, "peft": _write_peft, "gguf": _write_gguf}[settings.to](
            partial, out, source, settings
        )
        card = model_card.text(
            out,
            settings.to,
            name=source.name,
            step=source.step,
            config=source.config,
            dtype=settings.dtype,
            scores=bool(source.model.labels),
        )
        (partial / "README.md").write_text(card, encoding="utf-8")
    return out


@contextlib.contextmanager
def _partial(out: Path) -> Iterator[Path]:
    """A directory that becomes `out` at the end of the body, and is removed where that fails."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_target(out: str) -> Path:
    """The directory to write, whole path.

    Raises:
      ValueError: none is named, or it is not empty.
    """
    if not out:
        raise ValueError("name the directory to write: --out DIR")
    path = Path(out).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"out={out!r} exists and is not an empty directory; name another")
    return path


def open_source(name: str, step: int | None, *, trust: bool) -> Source:
    """The parameters and the tokenizer of a run or a model.

    Args:
      name: a run directory, or a model as in `jaxrl.models.load.load`.
      step: of the run's checkpoint; None: the newest.
      trust: functions of others may be named by the run's config.

    Raises:
      FileNotFoundError: no such run, model or checkpoint.
      ValueError: a step of a model, or a run that names functions of others.
    """
    if not policy.is_run(name):
        if (storage.locate(name) / "config.json").exists() and _looks_like_run(name):
            raise FileNotFoundError(f"{name} holds no checkpoint; has the run saved one yet?")
        if step is not None:
            raise ValueError(f"step={step}: {name!r} is a model, not a run; leave --step out")
    opened, the_mesh = policy.config_of(name), mesh.make(Config().mesh)
    trusted: Collection[str] | None = None if trust else ()
    model, tokenizer = policy.describe(opened, trust=trust)
    origin = policy.origin(opened, trusted)
    fresh = origin.model == "fresh"
    files = None if fresh else catalog.locate(origin.model)
    alphabet = policy.alphabet(origin) if fresh else ""
    config, adapters = None, LoraConfig(rank=0)
    if policy.is_run(name):
        config = account.config(name, trusted)
        params, adapters, step = policy.restored(name, model, the_mesh, step)
    else:
        params = policy.first_params(opened, model, the_mesh)
    return Source(name, config, step, model, params, adapters, tokenizer, files, alphabet)


def _looks_like_run(name: str) -> bool:
    return "config" in json_file.read(storage.locate(name) / "config.json")


def merged(source: Source) -> Params:
    """The parameters with adapters added in, as plain arrays."""
    if not source.adapters.rank:
        return source.params
    return lora.merge(source.model, *reversed(lora.detach(source.params)), source.adapters)


def _write_hf(partial: Path, out: Path, source: Source, settings: ExportConfig) -> None:
    _hf_directory(partial, source, merged(source), settings)


def _hf_directory(directory: Path, source: Source, params: Params, settings: ExportConfig) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory, source)
    ids = _token_ids(source)
    if source.model.labels:
        ids = _padded(directory, source, ids)
    huggingface.save(
        directory,
        source.model,
        params,
        dtype=settings.dtype,
        extra=ids,
        max_shard_bytes=int(settings.shard_gb * 1e9),
        around=None if source.model.labels else _around(source),
    )
    if source.model.labels:
        return
    generation = {**_base_json(source, "generation_config.json"), **_generation(source)}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def _around(source: Source) -> Path | None:
    """The directory of the model that reads pictures, whose text model was trained, if it was."""
    return load.around(str(source.files)) if source.files is not None else None


def write_tokenizer(directory: Path, source: Source) -> None:
    """Write the tokenizer's files and the chat template."""
    if source.files is None:
        tokenizer_files.from_alphabet(source.alphabet, directory)
    elif source.files.is_dir():
        tokenizer_files.copy(source.files, directory)
    else:
        tokenizer_files.from_gguf(source.files, directory)


def _base_json(source: Source, file: str) -> dict[str, Any]:
    """A JSON file of the model's own directory, if it has one."""
    path = source.files / file if source.files is not None and source.files.is_dir() else None
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def _token_ids(source: Source) -> dict[str, Any]:
    """The special ids of config.json: those of the model's own, else those of the tokenizer."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    raw = _base_json(source, "config.json")
    if model_ids := {name: raw[name] for name in names if raw.get(name) is not None}:
        return model_ids
    ends, bos = source.tokenizer.eos_ids, source.tokenizer.bos_id
    ids = {"bos_token_id": bos, "eos_token_id": ends[0] if ends else None}
    ids["pad_token_id"] = ids["eos_token_id"]
    return {name: i for name, i in ids.items() if i is not None}


def _padded(directory: Path, source: Source, ids: dict[str, Any]) -> dict[str, Any]:
    """The special ids of a reward model; its tokenizer's files are made to pad with the same token.

    The padding token is never one that ends a text, as transformers scores a text at its last token
    that is no padding. Where no other token is left, none is written, and transformers scores one
    text at a time.
    """
    config_pad = ids.get("pad_token_id")
    if config_pad in source.tokenizer.eos_ids:
        del ids["pad_token_id"]
    if not (directory / "tokenizer.json").exists():
        return ids
    fast = Tokenizer.from_file(str(directory / "tokenizer.json"))
    pad = _padding(fast, tokenizers.special_tokens(directory), source, config_pad)
    if pad is None:
        return ids
    token = fast.id_to_token(pad)
    files = directory / "tokenizer_config.json", *directory.glob("special_tokens_map.json")
    for file in files:
        fields = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if fields.get("pad_token") != token:
            text = json.dumps({**fields, "pad_token": token}, indent=2, ensure_ascii=False)
            file.write_text(f"{text}\n", encoding="utf-8")
    return {**ids, "pad_token_id": pad}


def _padding(
    fast: Tokenizer, special_tokens: Mapping[str, str], source: Source, config_pad: int | None
) -> int | None:
    """The padding token of the tokenizer or the config, else a special one, that ends no text.

    Args:
      fast: the tokenizer as it is written.
      special_tokens: spellings of its `pad_token`, `bos_token` and so on.
      source: what is exported.
      config_pad: `pad_token_id` of the config.
    """
    ids = {name: fast.token_to_id(token) for name, token in special_tokens.items()}
    special = {i for i, token in fast.get_added_tokens_decoder().items() if token.special}
    special.update(i for i in ids.values() if i is not None)
    bos = ids.get("bos_token")
    order = sorted(special, key=lambda i: ("pad" not in fast.id_to_token(i).lower(), i == bos, -i))
    if source.files is None:  # a character stays a token of its own where it is a special one
        order.append(len(source.alphabet))
    vocab_ids = set(fast.get_vocab().values()) & set(range(source.model.vocab_size))
    usable = vocab_ids - set(source.tokenizer.eos_ids)
    return next((i for i in (ids.get("pad_token"), config_pad, *order) if i in usable), None)


def _generation(source: Source) -> dict[str, Any]:
    """What generation_config.json says: every id that ends a text, and the run's sampling."""
    fields = {**_token_ids(source), "eos_token_id": list(source.tokenizer.eos_ids)}
    if source.config is not None:
        rollout = source.config.rollout
        # what is left out has a default of its own there, such as top-k 50
        fields |= {"do_sample": True, "temperature": rollout.temperature, **rollout.cuts}
    return fields


def _write_peft(partial: Path, out: Path, source: Source, settings: ExportConfig) -> None:
    if not source.adapters.rank:
        raise ValueError(
            f"{source.name!r} has no adapters (lora.rank=0): its weights are trained whole; "
            "export them with --to hf"
        )
    adapters, base = lora.detach(source.params)
    base_model = source.config.model
    untouched = not source.config.warm_start.steps and not source.config.course
    if untouched and (catalog.is_hub(base_model) or _is_hf(base_model)):
        base_name = base_model if catalog.is_hub(base_model) else str(Path(base_model).absolute())
    else:
        base_params = lora.merge(
            source.model, base, {}, dataclasses.replace(source.adapters, targets=())
        )
        _hf_directory(partial / "base", source, base_params, settings)
        base_name = str(out / "base")
    outer = _around(source)
    prefix = wrapped.find(wrapped.read_raw(outer)).prefix if outer else peft.PREFIX
    peft.save(partial, source.model, adapters, source.adapters, base=base_name, prefix=prefix)
    write_tokenizer(partial, source)


def _is_hf(model: str) -> bool:
    return model != "fresh" and not policy.is_run(model) and catalog.locate(model).is_dir()


def _write_gguf(partial: Path, out: Path, source: Source, settings: ExportConfig) -> None:
    if source.files is None:
        raise ValueError(
            f"{source.name!r} has a tokenizer of single characters, which GGUF does not know; "
            "export it with --to hf"
        )
    fields = gguf_fields.read(source.files, source.model.vocab_size)
    gguf_write.save(
        partial / "model.gguf",
        source.model,
        merged(source),
        dtype=settings.dtype,
        fields=fields,
        name=out.name,
    )
