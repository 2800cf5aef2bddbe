"""`jaxrl data` over files in the public layouts: the tokens of transformers and the masks of TRL.

Each file is small, and written as its framework documents it; beside it is what it means in
OpenAI's form. The tokens of that are `apply_chat_template`'s, and the mask is that of TRL's
training templates, which mark what the assistant wrote. Two things are ours: line breaks around a
turn, which TRL marks too, are not learned, and what follows the last token to learn is left out.
"""

import importlib.resources
import json
import shutil

import pytest
import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers, processors

from jaxrl.launch import cli
from tests.data.golden_files import (
    AGENT,
    PLAIN_FILES,
    TEXT_FILES,
    THOUGHT,
    TOOL_FILES,
    TOOLS,
    A,
    U,
)

pytestmark = pytest.mark.parity

FAMILIES = {
    "qwen2_5": ("", "<|im_end|>", "<|im_start|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    "qwen3_instruct_2507": ("", "<|im_end|>", "<|im_start|>"),
}
"""Of each template: its BOS, the token that ends a turn, and other special tokens."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
}  # fmt: skip


def template(name):
    return (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A function from a family to a directory with its template, whose tokens are bytes."""
    pytest.importorskip("trl")
    made = {}

    def get(family):
        if family in made:
            return made[family]
        bos, end, *others = FAMILIES[family]
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        fast = library.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
        fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        fast.decoder = decoders.ByteLevel()
        fast.add_special_tokens([*filter(None, (bos, end, *others))])
        if bos:
            fast.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, fast.token_to_id(bos))]
            )
        made[family] = folder = tmp_path_factory.mktemp(family)
        fast.save(str(folder / "tokenizer.json"))
        names = {"eos_token": end} | ({"bos_token": bos} if bos else {})
        settings = names | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "chat_template": template(family),
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return folder

    return get


class Theirs:
    """What transformers and TRL make of a conversation: pairs of tokens and mask."""

    def __init__(self, folder, family):
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.training = template(f"{family}_training")

    def spelled(self, answers):
        """Answers as texts of which each token that is learned is in brackets."""
        return [
            [
                f"[{text}]" if mark else text
                for text, mark in zip(map(self.tokenizer.decode, tokens), mask, strict=True)
            ]
            for tokens, mask in answers
        ]

    def _trimmed(self, tokens, mask):
        """Each run of the mask without the line breaks at its ends, and nothing after the last."""
        blank = self.tokenizer("\n", add_special_tokens=False).input_ids
        for order in (range(len(mask)), range(len(mask) - 1, -1, -1)):
            inside = False
            for at in order:
                if mask[at] and not inside and tokens[at] in blank:
                    mask[at] = 0
                else:
                    inside = bool(mask[at])
        size = len(mask) - mask[::-1].index(1)
        return tokens[:size], mask[:size]

    def talk(self, messages, tools=None, *, start=0, unlearned=(), **variables):
        """A conversation; `start` messages of it are a prompt, and `unlearned` are others."""
        write = self.tokenizer.apply_chat_template
        tokens = write(messages, tools=tools, return_dict=True, **variables)["input_ids"]
        marked = write(
            messages, tools=tools, chat_template=self.training, return_dict=True,
            return_assistant_tokens_mask=True, **variables,
        )  # fmt: skip
        assert marked["input_ids"] == tokens
        turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        mask, run = list(marked["assistant_masks"]), -1
        for at, mark in enumerate(marked["assistant_masks"]):
            run += mark and not (at and marked["assistant_masks"][at - 1])
            mask[at] = int(mark and turns[run] >= start and turns[run] not in unlearned)
        return self._trimmed(list(tokens), mask)

    def asked(self, messages, tools=None):
        """A prompt that a policy is to answer."""
        tokens = self.tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        return list(tokens), [0] * len(tokens)

    def trl(self, record, which):
        """An answer of a conversational row of TRL's, by its own function."""
        from trl import data_utils

        implicit = "prompt" not in record
        divided = data_utils.extract_prompt(record) if implicit else record
        divided = {k: divided[k] for k in ("prompt", which)} | (
            {"chosen": divided["chosen"], "rejected": divided["rejected"]}
            if which != "completion"
            else {}
        )
        made = data_utils.apply_chat_template(divided, self.tokenizer, record.get("tools"))
        prompt, answer = (
            self.tokenizer(made[part], add_special_tokens=False).input_ids
            for part in ("prompt", which)
        )
        return self._trimmed([*prompt, *answer], [0] * len(prompt) + [1] * len(answer))

    def plain(self, prompt, answer):
        """Texts, as TRL joins them."""
        before = self.tokenizer(prompt).input_ids
        after = self.tokenizer(answer, add_special_tokens=False).input_ids
        after = [*after, self.tokenizer.eos_token_id]
        if before:
            return before + after, [0] * len(before) + [1] * len(after)
        return after, [0] + [1] * (len(after) - 1)  # nothing precedes the first token


def joined(answers):
    return ["".join(pieces).replace("][", "") for pieces in answers]


def shown(capsys, folder, path, *flags):
    """Pairs of tokens and mask of the first row."""
    code = cli.main(["data", str(path), "--model", str(folder), "--json", *flags])
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert code == 0 and not report["bad_rows"], (printed.err, report["bad_rows"])
    assert not report["warnings"]
    return [(each["tokens"], each["mask"]) for each in report["first"][0]["answers"]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "files", [PLAIN_FILES, TOOL_FILES, TEXT_FILES], ids=["plain", "tools", "text"]
)
@pytest.mark.exact("files in the public layouts have the tokens of transformers and masks of TRL")
def test_tokens_and_masks_are_those_of_transformers_and_trl(files, family, model, tmp_path, capsys):
    if files is TOOL_FILES and family == "llama3":
        pytest.skip("its template knows no tools")
    folder = model(family)
    theirs, wrong = Theirs(folder, family), list[str]()
    for number, (name, (record, expected)) in enumerate(files.items()):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps(record) + "\n")
        flags = ["--chat"] if files is PLAIN_FILES else []
        got = theirs.spelled(shown(capsys, folder, path, *flags))
        if got != (wanted := theirs.spelled(expected(theirs))):
            wrong.append(f"{name}\n  {joined(got)}\n  {joined(wanted)}")
    assert not wrong, "\n".join(wrong)


def test_labels_of_steps_stand_where_trl_puts_them(model, tmp_path, capsys):
    """TRL scores the separator after a step, and jaxrl the state before the next token."""
    folder = model("qwen2_5")
    theirs = Theirs(folder, "qwen2_5").tokenizer
    record = {
        "prompt": "2 + 3 + 4 = ?\n",
        "completions": ["2 + 3 = 5", "5 + 4 = 8"],
        "labels": [True, False],
    }
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps(record))
    ((tokens, mask),) = shown(capsys, folder, path)
    steps = [theirs(f"{step}\n").input_ids for step in record["completions"]]
    before = theirs(record["prompt"]).input_ids
    assert tokens == [*before, *steps[0], *steps[1], theirs.eos_token_id]
    ends = [len(before) + len(steps[0]) - 1, len(before) + len(steps[0]) + len(steps[1]) - 1]
    assert [at - 1 for at, mark in enumerate(mask) if mark] == ends


def test_a_thought_is_learned_by_a_template_that_writes_it(model, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(model("qwen2_5"), folder)
    (folder / "chat_template.jinja").write_text(template("qwen3"))
    theirs = Theirs(folder, "qwen3")
    path = tmp_path / "rows.jsonl"
    for record in (
        {"messages": [U, THOUGHT]},
        {"messages": [U, {"role": "assistant", "content": "<think>\n2 + 3\n</think>\n\n5"}]},
        {
            "messages": [
                U,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "2 + 3"},
                        {"type": "text", "text": "5"},
                    ],
                },
            ]
        },
    ):
        path.write_text(json.dumps(record))
        assert shown(capsys, folder, path) == [theirs.talk([U, THOUGHT])]


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_tables_hold_the_same_conversations(ending, model, tmp_path, capsys):
    """A Parquet file pads keys that other rows have with nulls; a table of texts holds JSON."""
    import pandas

    rows = [{"messages": AGENT, "tools": TOOLS}, {"messages": [U, A], "tools": None}]
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pandas.DataFrame(rows).to_parquet(path)
    elif ending == "csv":
        pandas.DataFrame([{k: v and json.dumps(v) for k, v in r.items()} for r in rows]).to_csv(
            path, index=False
        )
    else:
        path.write_text(json.dumps(rows))
    folder = model("qwen2_5")
    assert shown(capsys, folder, path) == [Theirs(folder, "qwen2_5").talk(AGENT, TOOLS)]
