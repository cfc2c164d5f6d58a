"""Loads the tokenizer of a model folder or hub id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError
from finqa_cli.local_models import local_model

MODEL_REMEDY = (
    "name a chat model with tokenizer.json and a chat template, a folder or hub id, or --set codec.name=plain"
)
_TOKENIZER_REMEDY = "name a model with its tokenizer (tokenizer.json), a folder or hub id"
_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model")
_CONFIG = "tokenizer_config.json"
_GENERATION = "generation_config.json"


def load_tokenizer(model: str, *, template: bool = True) -> Any:
    """The tokenizer of a folder or hub id.

    Args:
        model: Folder or hub id.
        template: Whether the tokenizer must have a chat template.

    Raises:
        ConfigError: The folder or the hub has none, or it lacks the template.
    """
    folder = Path(model)
    if folder.is_dir():
        missing = [] if any((folder / name).is_file() for name in _VOCABULARIES) else [_VOCABULARIES[0]]
        missing += [] if (folder / _CONFIG).is_file() else [_CONFIG]
        if missing:
            raise ConfigError(f"The model folder {model} has no {' and no '.join(missing)}.", remedy=_TOKENIZER_REMEDY)
    try:
        local = local_model(model)
        tokenizer = _load(local, _stamps(Path(local)))
    except Exception as error:  # transformers raises OSError, ValueError, KeyError or plain Exception
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"The tokenizer of {model!r} cannot be loaded: {reason}", remedy=_TOKENIZER_REMEDY) from error
    if template and not tokenizer.chat_template:
        raise ConfigError(f"The tokenizer of {model!r} has no chat template.", remedy=MODEL_REMEDY)
    return tokenizer


_ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>")
"""Tokens with which Qwen's and Llama's models also end a turn; a copy of them may lack generation_config.json."""


def end_tokens(tokenizer: Any, model: str) -> list[str]:
    """The tokens that end a turn of a model: its tokenizer's end token and those of generation_config.json."""
    ids = [tokenizer.eos_token_id, *_generation_ends(model)]
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    known = (tokenizer.convert_ids_to_tokens(number) for number in ids if number is not None)
    return list(dict.fromkeys([text for text in known if text] + [text for text in _ENDS_OF_TEXT if text in added]))


def _generation_ends(model: str) -> list[int]:
    path: str | Path | None = Path(model) / _GENERATION
    if not Path(model).is_dir():
        from transformers.utils import cached_file

        try:
            path = cached_file(local_model(model), _GENERATION)
        except OSError:  # the model has none, or only its tokenizer is here
            return []
    try:
        ends = parse_json(Path(path).read_text(encoding="utf-8")).get("eos_token_id") if path else None
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged: {error}.", remedy=_TOKENIZER_REMEDY) from error
    return [number for number in (ends if isinstance(ends, list) else [ends]) if isinstance(number, int)]


@lru_cache(maxsize=1)
def _load(model: str, stamps: tuple[tuple[str, int, int], ...]) -> Any:
    """Load a tokenizer; the last one is kept, because several codecs read the same one, and a large one takes 0.8 s.

    Args:
        model: Folder or hub id.
        stamps: Name, time and size of the files that it is read from, so that a changed folder is read again.
    """
    name = _class_name(Path(model))
    if name is None:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model)
    import transformers

    return getattr(transformers, name).from_pretrained(model)


def _class_name(folder: Path) -> str | None:
    """The class that AutoTokenizer is sure to choose for a folder, or None.

    AutoTokenizer imports torch (1.8 s of CPU time) to look the class up by the model's configuration. The pairs below
    are known without it.
    """
    try:
        family = parse_json((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
        facts = parse_json((folder / _CONFIG).read_text(encoding="utf-8"))
        given = str(facts["tokenizer_class"]).removesuffix("Fast")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if "auto_map" in facts:
        return None
    return {
        ("qwen3", "TokenizersBackend"): "PreTrainedTokenizerFast",
        ("qwen3", "PreTrainedTokenizer"): "PreTrainedTokenizerFast",
        ("qwen3", "Qwen2Tokenizer"): "Qwen2Tokenizer",
        ("qwen2", "Qwen2Tokenizer"): "Qwen2Tokenizer",
        ("gpt2", "GPT2Tokenizer"): "GPT2Tokenizer",
    }.get((family, given))


def _stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time of change and size of each small file of a folder; nothing for a hub id."""
    if not folder.is_dir():
        return ()
    files = sorted(
        path for path in folder.iterdir() if path.is_file() and path.suffix in (".json", ".jinja", ".model", ".txt")
    )
    return tuple((path.name, (state := path.stat()).st_mtime_ns, state.st_size) for path in files)


def plain_coding(tokenizer: Any) -> tuple[Callable[[str], list[int]], Callable[[Sequence[int]], str]]:
    """Functions that encode a text without adding special tokens, and decode ids without skipping special tokens.

    What `transformers` does around each call of a fast tokenizer's backend (input checks, settings of truncation,
    padding and special tokens) costs as much as a short call. So the backend is called directly, with these settings
    made once.
    """
    if not tokenizer.is_fast:
        encode = partial(tokenizer.encode, add_special_tokens=False, verbose=False)
        return encode, partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens

    def encode_fast(text: str) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    return encode_fast, partial(backend.decode, skip_special_tokens=False)
