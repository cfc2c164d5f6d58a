"""The embedded policies: tiny Qwen3 models that were trained from nothing by `finqa sft`; see recipes/ for how."""
