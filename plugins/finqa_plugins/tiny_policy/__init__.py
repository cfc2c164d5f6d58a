"""The embedded policy: a tiny Qwen3 that was trained from nothing by `finqa sft`; see recipes/ for how."""
