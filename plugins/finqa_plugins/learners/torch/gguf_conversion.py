"""Converts GGUF files into model folders of transformers: weights, configuration, tokenizer and generation settings.

transformers reads the weights. What it leaves unsaid in its result is checked here against the file: every tensor of
the file must be in the model, every weight of the model must be in the file, and the tokenizer must split text as the
model's own tokenizer does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as gguf_loading
from transformers.utils import logging as transformers_logging

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, MissingDependencyError, StorageError
from finqa_cli.local_models import GgufFile
from finqa_plugins.learners.torch.state import LARGEST_FILE

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Moved = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done, and how much there is in all (0: it is not known)."""

_DIGIT_SPLITTING = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"}
)
_GPT2_SPLITTING = frozenset({"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"})
"""Values of `tokenizer.ggml.pre` whose text is split as by GPT-2; those above also split digits one by one. From the
table in src/llama-vocab.cpp of llama.cpp. transformers has a table of further values, and splits any unknown one as by
GPT-2: then line breaks before a digit and long numbers become other tokens than in training, without an error."""

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endofturn|>")
"""Control tokens that end a turn. Files made before llama.cpp wrote `eot_token_id` name only the end of a document."""

_CONTROL = 3
"""Value of `tokenizer.ggml.token_type` for control tokens."""


def convert(header: GgufFile, folder: Path, dtype: str, moved: Moved) -> None:
    """Writes the model into an existing, empty folder, in a precision of `DTYPES`.

    Needs memory for the weights in this precision, and for a moment a tensor in float32.

    Raises:
        ConfigError: transformers does not know the architecture, or the file contradicts itself.
        MissingDependencyError: The package `gguf` is not installed.
        StorageError: A file cannot be written.
    """
    if not transformers.utils.is_gguf_available():
        raise MissingDependencyError(
            "The package gguf, which reads GGUF files, is missing or too old.", remedy="pip install 'finqa[train]'"
        )
    with _quiet():
        moved("reading the configuration", 0, 0)
        config = _guarded(header, "its configuration", lambda: _read_config(header))
        moved("reading the vocabulary", 0, 0)
        tokenizer = _guarded(header, "its tokenizer", lambda: _read_tokenizer(header))
        model = _guarded(header, "its weights", lambda: _read_weights(header, config, DTYPES[dtype], moved))
        moved("writing the model", 0, 0)
        model.generation_config = _generation_config(header, config)
        try:
            model.save_pretrained(folder, max_shard_size=LARGEST_FILE)
            tokenizer.save_pretrained(folder)
            _tidy(folder, context=header.number(f"{header.architecture}.context_length"))
        except OSError as error:
            raise StorageError(f"Cannot write {folder}: {error.strerror or error}.") from error


def _guarded(header: GgufFile, what: str, read: Callable[[], Any]) -> Any:
    """Calls a function that hands the file to transformers, whose errors about a file are of many kinds."""
    try:
        return read()
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # KeyError, ValueError, RuntimeError, NotImplementedError and more, by architecture
        words = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {words[0][:200]}" if words else type(error).__name__
        raise ConfigError(
            f"transformers {transformers.__version__} cannot convert {header.path} (architecture "
            f"{header.architecture!r}): {what} cannot be read ({reason}).",
            remedy="finqa model get HUB_ID, with the model that the file was made from",
        ) from error


def _contradiction(header: GgufFile, reason: str) -> ConfigError:
    return ConfigError(
        f"{header.path} cannot be converted without changing the model: {reason}.",
        remedy="finqa model get HUB_ID, with the model that the file was made from",
    )


def _read_config(header: GgufFile) -> Any:
    """Returns the configuration, after a check that it describes as many weights as the file contains."""
    layers = header.number(f"{header.architecture}.block_count")
    if layers is not None and not 0 < layers <= len(header.tensors):
        raise _contradiction(header, f"it announces {layers} layers, but contains {len(header.tensors)} tensors")
    scaling = header.text(f"{header.architecture}.rope.scaling.type")
    config = AutoConfig.from_pretrained(header.path.parent, gguf_file=header.path.name)
    facts = {key: value for key, value in config.to_dict().items() if key != "quantization_config"}
    facts.pop("_name_or_path", None)
    config = type(config).from_dict(facts)
    if any(tensor.name.startswith("rope_freqs") for tensor in header.tensors) or (
        scaling not in ("", "none") and "default" in str(getattr(config, "rope_parameters", "default"))
    ):
        raise _contradiction(header, "it scales its rotary positions, which transformers does not read from GGUF")
    with torch.device("meta"):
        described = AutoModelForCausalLM.from_config(config)
    count = sum(weight.numel() for weight in described.parameters())
    if count != header.parameters:
        raise _contradiction(
            header, f"its metadata describes {count:,} weights, but its tensors contain {header.parameters:,}"
        )
    return config


def _read_weights(header: GgufFile, config: Any, dtype: torch.dtype, moved: Moved) -> Any:
    """Returns the model without marks of quantization, with which transformers refuses to save it."""
    with _counted(moved):
        loaded, report = AutoModelForCausalLM.from_pretrained(
            header.path.parent, gguf_file=header.path.name, dtype=dtype, output_loading_info=True
        )
    if lacking := sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])}):
        raise _contradiction(header, f"its tensors do not give {len(lacking)} weights, among them {lacking[0]}")
    config.dtype = dtype
    with torch.device("meta"):  # without values: those of the file are put in, not copied
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    state = {name: weight.to(dtype) for name, weight in loaded.state_dict().items()}
    model.load_state_dict(state, assign=True, strict=True)
    model.tie_weights()
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise _contradiction(header, f"{name} contains numbers that are not finite")
    return model


def _read_tokenizer(header: GgufFile) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(header.path.parent, gguf_file=header.path.name)
    backend = tokenizer.backend_tokenizer
    if header.text("tokenizer.ggml.model") == "gpt2" and isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        splitting = header.text("tokenizer.ggml.pre")
        if splitting in _DIGIT_SPLITTING:
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
                ]
            )
        elif splitting not in _GPT2_SPLITTING:
            raise _contradiction(
                header, f"how its tokenizer splits text is not known here (tokenizer.ggml.pre {splitting!r})"
            )
    _check_tokens(header, tokenizer)
    return tokenizer


def _check_tokens(header: GgufFile, tokenizer: Any) -> None:
    """Checks that special tokens have the ids of the file, and that those of the chat template stay whole in text."""
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    if len(tokenizer) != len(tokens):
        raise _contradiction(header, f"its vocabulary has {len(tokens)} tokens, but the tokenizer {len(tokenizer)}")
    for name, key in (("eos_token_id", "eos_token_id"), ("bos_token_id", "bos_token_id")):
        stored = header.number(f"tokenizer.ggml.{key}")
        if stored is not None and getattr(tokenizer, name) != stored:
            raise _contradiction(header, f"its {key} is {stored}, but the tokenizer has {getattr(tokenizer, name)}")
    for token, number in _template_tokens(header):
        if tokenizer.encode(token, add_special_tokens=False) != [number]:
            raise _contradiction(header, f"the control token {token!r} does not stay whole in text")


def _template_tokens(header: GgufFile) -> Iterator[tuple[str, int]]:
    """Yields the control tokens that the chat template names, with their ids."""
    template = header.text("tokenizer.chat_template")
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    kinds = header.metadata.get("tokenizer.ggml.token_type", [])
    for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):
        if kind == _CONTROL and token in template:
            yield token, number


def _generation_config(header: GgufFile, config: Any) -> Any:
    """Returns generation settings with each token that ends a reply: of a document, of a turn, and of a message."""
    settings = transformers.GenerationConfig.from_model_config(config)
    named = (header.number(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    turns = (number for token, number in _template_tokens(header) if token in _TURN_ENDS)
    size = len(header.metadata.get("tokenizer.ggml.tokens", []))
    ends = list(dict.fromkeys(end for end in (*named, *turns) if end is not None and 0 <= end < size))
    settings.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    return settings


def _tidy(folder: Path, *, context: int | None) -> None:
    """Removes what transformers notes about this machine, and names a tokenizer class that transformers 4 knows too."""
    for name, unwanted in (
        ("config.json", ("_model_name_or_path", "_name_or_path")),
        ("generation_config.json", ("_from_model_config",)),
        ("tokenizer_config.json", ("is_local", "local_files_only")),
    ):
        path = folder / name
        facts = {key: value for key, value in parse_json(path.read_text("utf-8")).items() if key not in unwanted}
        if facts.get("tokenizer_class") == "TokenizersBackend":
            facts["tokenizer_class"] = "PreTrainedTokenizerFast"
        if context is not None and "model_max_length" in facts:
            facts["model_max_length"] = context
        path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides bars and advice of transformers, which would be mixed with the display of the command."""
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


@contextlib.contextmanager
def _counted(moved: Moved) -> Iterator[None]:
    """Reports each tensor that transformers unpacks. Its loader offers no callback, only a bar on stderr."""
    theirs = getattr(gguf_loading, "tqdm", None)

    def counted(items: Any, *_: object, **__: object) -> Iterator[Any]:
        listed = list(items)
        for number, item in enumerate(listed):
            moved("unpacking tensors", number, len(listed))
            yield item
        moved("unpacking tensors", len(listed), len(listed))

    if theirs is None:
        yield
        return
    gguf_loading.tqdm = counted
    try:
        yield
    finally:
        gguf_loading.tqdm = theirs
