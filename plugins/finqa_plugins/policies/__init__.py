"""The embedded policies: tiny Qwen3 models, trained from scratch by `finqa sft`; see recipes/."""
