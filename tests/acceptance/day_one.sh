#!/usr/bin/env bash
# A newcomer's first day: a Hugging Face directory, own rows, an own reward, GRPO with LoRA, continue,
# export, load in transformers, then SFT and DPO from files.
# Needs `transformers` and `torch` (the extra `parity`). Usage: tests/acceptance/day_one.sh [PYTHON]
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
python="${1:-$root/.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$root" XDG_STATE_HOME="$work/state" COLUMNS=150
cd "$work"
jaxrl() { "$python" -m jaxrl.launch.cli "$@"; }

"$python" - <<'PYTHON'
"""A tiny Qwen3 with a character tokenizer and a chat template, written by transformers."""
import json

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
words = ["<pad>", "<|end|>", *map(chr, range(32, 127)), "\n"]
tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
tokenizer.decoder = decoders.Fuse()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<pad>")
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
config = Qwen3Config(
    vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
    eos_token_id=1, pad_token_id=0, bos_token_id=1, tie_word_embeddings=True,
)
Qwen3ForCausalLM(config).save_pretrained("model")
fast.save_pretrained("model")
rows = [{"question": f"{i}+{i}", "answer": str(2 * i)} for i in range(40)]
with open("train.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
with open("my_reward.py", "w") as file:
    file.write("def score(completion, answer):\n    return float(len(completion) < 6) + float(answer in completion)\n")
PYTHON

jaxrl train grpo --model ./model --data train.jsonl --prompt-column question --answer-column answer \
    --reward my_reward.py:score --steps 4 --run-dir run --lora-rank 4 --lr 1e-3 \
    --batch-size 4 --group-size 4 --max-new-tokens 8 --max-prompt-tokens 32 --eval-problems 4
test "$(wc -l < run/metrics.jsonl)" = 4

jaxrl train run | grep "continuing run from step 4"      # no flags: nothing is left to do
jaxrl train run --steps 6
test "$(wc -l < run/metrics.jsonl)" = 6

jaxrl show grpo --model ./model --data train.jsonl --reward my_reward.py:score --yaml > my.yaml
grep -q "chat: true" my.yaml                              # the model has a chat template

jaxrl export run --to hf --out exported                   # LoRA, merged into the weights
"$python" - <<'PYTHON'
"""What was exported generates in transformers."""
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("exported")
model = AutoModelForCausalLM.from_pretrained("exported")
made = model.generate(**tokenizer("3+3=", return_tensors="pt"), max_new_tokens=4, do_sample=False)
print("transformers:", tokenizer.decode(made[0]))
PYTHON

rows() { "$python" -c "
import json
for i in range(40):
    print(json.dumps($1))"; }
rows '{"prompt": f"{i}+{i}", "completion": str(2 * i)}' > sft.jsonl
rows '{"prompt": f"{i}+{i}", "chosen": str(2 * i), "rejected": str(2 * i + 1)}' > dpo.jsonl
jaxrl train sft --data sft.jsonl --model exported --steps 3 --run-dir sft --data.max-tokens 64
jaxrl train dpo --data dpo.jsonl --model sft --steps 3 --run-dir dpo --data.max-tokens 64
"$python" -c '
import json
for run, name in (("sft", "loss"), ("dpo", "accuracy")):
    figures = json.load(open(f"{run}/summary.json"))["eval"]
    assert name in figures["before"] and name in figures["after"], figures
'
for run in sft dpo; do
    jaxrl export "$run" --to hf --out "$run-hf"
    "$python" -c "
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained('$run-hf')
ids = tokenizer('3+3=', return_tensors='pt')
assert AutoModelForCausalLM.from_pretrained('$run-hf')(**ids).logits.isfinite().all()
"
done
echo "day one: passed"
