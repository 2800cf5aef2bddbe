"""The help of `jaxrl train` on one screen: a text, so that it costs no imports."""

TEXT = """\
usage: jaxrl train [RECIPE | FILE.yaml | FILE.py | RUN_DIRECTORY] [flags]

  jaxrl train                                       the quickstart: a small model from scratch
  jaxrl train grpo --model DIR --data F.jsonl --reward my_reward.py:score
  jaxrl train my.yaml --lr 2e-6                     a config file (jaxrl show grpo --yaml > my.yaml)
  jaxrl train runs/grpo-seed0                       continue a run

model and data
  --model M               Hugging Face directory or hub id, GGUF file, packaged model or run
                          directory
  --data FILE             your rows: .jsonl, .csv or .parquet; --test-data FILE to evaluate on
  --prompt-column NAME    column of the prompt;  --answer-column NAME: of the reference answer
  --reward SPEC           FILE.py:FUNCTION, rubric:FILE.yaml, a name (number, math, judge, ...) or
                          the run of a reward model; may be repeated, as NAME=SPEC*WEIGHT
  --task NAME             a bundled task in place of your data (jaxrl tasks)
training
  --steps N               training steps; or --epochs N passes over the data
  --lr X                  learning rate
  --batch-size N          prompts per step;  --group-size N: completions per prompt
  --lora-rank R           train LoRA adapters of rank R
  --kl-coef X             weight of the KL penalty to the reference policy
  --with NAME             add an extension: critic, replay, kl_control, ... (jaxrl extensions)
sampling
  --max-new-tokens N      longest completion;  --max-prompt-tokens N: longest prompt
  --temperature X         sampling temperature
  --chat, --no-chat       put prompts in the model's chat template or not;  --system TEXT
run
  --run-dir D             run directory (default runs/RECIPE-seedSEED)
  --seed N                random seed; 0,1,2 trains three runs and compares them (any number can);
                          --parallel N trains N of them at once, and --together steps those of
                          adapters in turn over one base
  --eval-every N          steps between evaluations;  --save-every N: between checkpoints
  --show-every N          steps between completions shown
  --compute-dtype D       float32 or bfloat16
  --fsdp N, --tensor N    devices to shard over
  --memory SIZE           choose --remat and micro-batches so that an update fits a device: auto,
                          or a size such as 14GiB
  --wandb PROJECT         also log to Weights & Biases (or --trackio PROJECT, --mlflow EXPERIMENT,
                          --otlp ADDRESS);
                          --run-name NAME, --tags TAG ..., --wandb-entity NAME

jaxrl train --help-all lists every flag; jaxrl help GROUP those of objective, rollout, ...
jaxrl recipes lists the algorithms and recipes; docs/own-data.md explains data and rewards.
"""
