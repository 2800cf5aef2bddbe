"""The host side: tasks, tokenizers, templates, rewards and the streams that feed a run."""
