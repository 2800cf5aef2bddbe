"""Directories of models whose files hold anything: each is read, or refused in a line, in time."""

import contextlib
import json
import os
import shutil
import struct
import time

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxrl.data.text import tokenizers
from jaxrl.models import catalog, decoder, load
from jaxrl.models.checkpoints import huggingface
from jaxrl.models.config import DecoderConfig
from tests.data import words

SECONDS = 10.0
NOT_JSON = (
    b"", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000, b"{",
    b"9" * 5000, b'{"model_type": ' + b"9" * 5000 + b"}", b"\x00" * 100,
)  # fmt: skip
VALUES = (
    "x", [], {}, -1, 0, 10**9, 1e308, float("nan"), None, True, "\x1b[2J", [1] * 10,
    {"a": {"b": 1}}, 10**400, [[[]]], "9" * 5000, 0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model as they are."""
    folder = tmp_path_factory.mktemp("model")
    words.tokenizer(folder)
    shape = DecoderConfig(len(words.WORDS), 16, 32, 1, 2, 2, 16, max_positions=64)
    params = decoder.init(shape, jax.random.key(0))
    huggingface.save(folder, shape, params, extra={"eos_token_id": 1})
    return folder


class Trials:
    """Changes a copy of a model, and keeps what its readers do that they must not."""

    def __init__(self, base, folder):
        self.base, self.folder, self.faults, self.count = base, folder / "model", [], 0

    def change(self, name, write, *readers, refused=False):
        """Args: `write(directory)`; `refused`: something must be."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.base, self.folder)
        write(self.folder)
        self.count += 1
        started, said = time.monotonic(), []
        for read in readers:
            try:
                read(str(self.folder))
            except (ValueError, FileNotFoundError) as error:  # which the commands print in a line
                said.append(str(error))
                if not str(error):
                    self.faults.append(f"{name}: {read.__name__}: an error without a word")
            except BaseException as error:
                self.faults.append(f"{name}: {read.__name__}: {error!r:.200}")
        if (seconds := time.monotonic() - started) > SECONDS:
            self.faults.append(f"{name}: {seconds:.0f} s")
        if refused and not said:
            self.faults.append(f"{name}: nothing is refused")

    def put(self, file, content, *readers, **more):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        name = f"{file} {content[:60]!r}"
        self.change(name, lambda folder: (folder / file).write_bytes(content), *readers, **more)


@pytest.fixture
def trials(base, tmp_path):
    made = Trials(base, tmp_path)
    yield made
    assert not made.faults, "\n".join(made.faults)
    assert made.count


def config(path):
    load.read_config(path)


def weights(path):
    load.load(path)


def tokenizer(path):
    tokenizers.load(catalog.locate(path)).encode("hello")


def test_a_model_as_they_are_is_read(base):
    for read in (config, weights, tokenizer):
        read(str(base))


@pytest.mark.parametrize(
    ("file", "readers", "refused"),
    [
        ("config.json", (config, tokenizer), True),
        ("tokenizer.json", (tokenizer,), True),
        ("tokenizer_config.json", (tokenizer,), False),
        ("special_tokens_map.json", (tokenizer,), False),
        ("generation_config.json", (tokenizer,), False),
        ("adapter_config.json", (config,), True),
        ("model.safetensors.index.json", (weights,), True),
        ("chat_template.json", (tokenizer,), False),
    ],
)
def test_a_file_that_holds_no_fields(file, readers, refused, trials):
    for content in NOT_JSON:
        trials.put(file, content, *readers, refused=refused)


@pytest.mark.broad
def test_a_config_with_any_value_in_any_field(base, trials):
    fields = json.loads((base / "config.json").read_text())
    extra = ("layer_types", "rope_parameters", "quantization_config", "text_config", "num_labels",
             "id2label", "auto_map", "num_experts", "partial_rotary_factor")  # fmt: skip
    for name in (*fields, *extra):
        for value in VALUES:
            trials.put("config.json", fields | {name: value}, config)


@pytest.mark.broad
def test_fields_of_a_tokenizer_with_any_value(base, trials):
    fields = json.loads((base / "tokenizer.json").read_text())
    for name in fields:
        for value in VALUES:
            trials.put("tokenizer.json", fields | {name: value}, tokenizer)
    for file in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        path = base / file
        held = json.loads(path.read_text()) if path.exists() else {}
        for name in ("eos_token", "bos_token", "chat_template", "added_tokens_decoder",
                     "eos_token_id", "add_bos_token", "tokenizer_class", "auto_map"):  # fmt: skip
            for value in VALUES:
                trials.put(file, held | {name: value}, tokenizer)


def added(number, text):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"added_tokens": [{"id": number, "content": text, "special": True, **flags}]}


def split(pattern):
    step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": step}


TOKENIZERS = (
    added(-1, "a"), added(2**32 - 1, "a"), added(3, ""), added(3, "\x00"),
    split({"Regex": "(a+)+$"}), split({"Regex": "((a{1,1000}){1,1000}){1,1000}"}),
    split({"Regex": ""}), split({"String": ""}), split({"Regex": "("}),
    {"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 5,
                    "direction": "Right"}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 1000}]
     * 200}},
    {"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": -1}}},
    {"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 2**32 - 1}}},
    {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"] * 1000}},
    {"model": {"type": "BPE", "vocab": {}, "merges": []}},
    {"model": {"type": "Unigram", "vocab": [], "unk_id": 7}},
    {"model": {"type": "Unigram", "vocab": [["a", 1e308]], "unk_id": 2**60}},
)  # fmt: skip


def test_tokenizers_that_ask_for_much(base, trials):
    fields = json.loads((base / "tokenizer.json").read_text())
    for change in TOKENIZERS:
        trials.put("tokenizer.json", fields | change, tokenizer)
    template = b"{{ 'a' }}" * 1_000_000
    trials.put("chat_template.jinja", template, tokenizer, refused=True)
    trials.put("chat_template.jinja", b"\xff\xfe", tokenizer, refused=True)


def test_headers_of_safetensors(base, trials):
    raw = (base / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    name = next(key for key in header if key != "__metadata__")

    def file(header, size=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if size is None else size) + text + data

    for content in NOT_JSON:
        trials.put("model.safetensors", file(content), weights, refused=True)
    for size in (0, 1, 2**31, 2**63, 2**64 - 1):
        trials.put("model.safetensors", file(header, size), weights, refused=True)
    for change in (
        {"shape": [2**40, 2**40]}, {"shape": [-1, 5]}, {"shape": "x"}, {"shape": [1] * 10_000},
        {"data_offsets": [0, 2**62]}, {"data_offsets": [-5, 10]}, {"data_offsets": [9, 1]},
        {"dtype": "F999"}, {"dtype": None}, {"dtype": "I64"},
    ):  # fmt: skip
        changed = header | {name: header[name] | change}
        trials.put("model.safetensors", file(changed), weights, refused=True)
    many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}
    trials.put("model.safetensors", file(many), weights, refused=True)
    for content in (b"", raw[:5], raw[:100], raw[:-1], raw + b"x"):
        trials.put("model.safetensors", content, weights, refused=True)


def test_an_index_names_files_beside_it_alone(trials):
    file = "model.safetensors.index.json"
    for names in ("../model.safetensors", "/etc/passwd", "", "..", ".", "a/../model.safetensors",
                  5, None, ["x"], "gone.safetensors", "config.json"):  # fmt: skip
        trials.put(file, {"weight_map": {"a": names}}, weights, refused=True)
    for value in VALUES:
        trials.put(file, {"weight_map": value}, weights, refused=True)


FILES = (
    ("config.json", config), ("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer),
    ("model.safetensors", weights), ("chat_template.jinja", tokenizer),
    ("adapter_config.json", config), ("model.safetensors.index.json", weights),
)  # fmt: skip


def test_what_is_no_file_is_not_waited_for(trials):
    kinds = {
        "a pipe": os.mkfifo,
        "a folder": os.mkdir,
        "an endless device": lambda path: os.symlink("/dev/zero", path),
        "a link to itself": lambda path: os.symlink(path, path),
    }
    for file, read in FILES:
        for kind, make in kinds.items():

            def write(folder, file=file, make=make):
                with contextlib.suppress(FileNotFoundError):
                    (folder / file).unlink()
                make(folder / file)

            gone = kind == "a link to itself"  # as if it were not there
            trials.change(f"{file} is {kind}", write, read, refused=not gone)

    def large(folder):
        with open(folder / "tokenizer.json", "wb") as file:
            file.truncate(1 << 30)

    trials.change("a large text", large, tokenizer, refused=True)


def test_adapters_of_themselves_are_refused(trials):
    for target in (trials.folder, trials.folder / ".." / "model", 5, ["x"], {"a": 1}, "\x00"):
        named = {"base_model_name_or_path": target if not isinstance(target, os.PathLike)
                 else str(target)}  # fmt: skip
        trials.put("adapter_config.json", named, config, weights, refused=True)


PATTERNS = (
    "([a-z_.0-9]+)+!", "(.*)*!", "(a|a)*b", "(.*a){30}", "((a*)*)*!", ".*.*.*.*.*.*!", "(?i:Q)",
    "[a-z.]*[a-z.]*[a-z.]*[a-z.]*[0-9]*!", "(?P<x>a)(?P=x)", "(a)\\1", "(?=a)*", "(a{9}){9}",
)  # fmt: skip
"""Patterns of modules that are no plain ones; the first take a lifetime to match a name."""


@pytest.mark.broad
def test_adapters_of_any_value_are_read_or_refused(base, tmp_path):
    held = safetensors.numpy.load_file(base / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    out, width = held[f"{name}.weight"].shape
    folder = tmp_path / "adapter"
    folder.mkdir()
    parts = {"A": np.ones((2, width), np.float32), "B": np.ones((out, 2), np.float32)}
    safetensors.numpy.save_file(
        {f"base_model.model.{name}.lora_{part}.weight": value for part, value in parts.items()},
        folder / "adapter_model.safetensors",
    )
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)}

    def answer(fields):
        (folder / "adapter_config.json").write_text(json.dumps(plain | fields))
        start = time.process_time()
        try:
            load.load(str(folder))
        except (ValueError, FileNotFoundError) as error:
            return str(error)
        finally:
            assert time.process_time() - start < SECONDS, fields
        return ""

    assert not answer({}) and not answer({"alpha_pattern": {".*q_proj": 3, "[0-9]+.v_proj": 1}})
    for pattern in PATTERNS:
        for field in ("alpha_pattern", "trainable_token_indices"):
            assert "adapter_config.json has " + field in answer({field: {pattern: 3}}), pattern
    file = folder / "adapter_model.safetensors"
    tensors = file.read_bytes()
    for content in (b"", b"\xff" * 8 + b"{}", struct.pack("<Q", 10) + b"x", tensors[:-1]):
        file.write_bytes(content)
        assert "cannot be read" in answer({})
    for shape in ((0, 0), (3,), (2, 2, 2)):
        odd = {key: np.ones(shape, np.float32) for key in safetensors.numpy.load(tensors)}
        safetensors.numpy.save_file(odd, file)
        assert str(folder) in answer({})
    file.write_bytes(tensors)
    assert "alpha_pattern" in answer({"alpha_pattern": {f"a{i}": 1 for i in range(2000)}})
    for value in VALUES:
        for field in ("lora_alpha", "alpha_pattern", "rank_pattern", "use_rslora", "use_dora"):
            said = answer({field: value})
            assert field in said or not said or "parts" in said, (field, value, said)
