"""Makes a small policy from scratch: a tokenizer learned from demonstrations and a randomly initialised Qwen3 model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from finqa_cli.documents import parse_toml
from finqa_cli.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# As in Qwen3's tokenizer: separate tokens, but not special, so that decoding keeps them.
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
# Snake-case words stay whole, and a name has the same tokens after a space and after a quote, so that a name can be
# copied from the question into a query id by id. Years are one unit, other numbers are single digits.
_WORDS = r"[\p{L}_]+|(?<!\p{N})20[012]\p{N}(?!\p{N})|\p{N}|[^\p{L}\p{N}_]+"

_CONTROL = re.compile("|".join(map(re.escape, (*SPECIAL_TOKENS, *TAG_TOKENS))))


class ModelSpec(BaseModel):
    """Sizes of the network; for their meaning see transformers' Qwen3Config."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    hidden_size: int = Field(128, ge=8)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    key_value_heads: int = Field(2, ge=1)
    head_dim: int = Field(32, ge=4, multiple_of=2)
    intermediate_size: int = Field(384, ge=8)
    max_context: int = Field(2048, ge=128)
    rope_theta: float = Field(10000.0, gt=0)
    initializer_range: float = Field(0.02, gt=0)


class TokenizerSpec(BaseModel):
    """How the tokenizer is learned.

    Attributes:
        vocab_size: Largest number of entries: bytes, merges, phrases and control tokens.
        phrases: Boilerplate that becomes one token each.
        line_share: Lines that occur at least this often, relative to the most frequent line, become one token each.
        word_share: Words that occur at least this often, relative to the most frequent line, become one token each.
        merge_share: Other words, such as names, are spelled in pieces that occur at least this often, relative to the
            most frequent line: a policy learns a rare token badly, and unseen names would be full of rare tokens.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    vocab_size: int = Field(1024, ge=300)
    phrases: tuple[str, ...] = ()
    line_share: float = Field(0.9, gt=0, le=1)
    word_share: float = Field(0.03, gt=0)
    merge_share: float = Field(0.12, gt=0)


class PolicySpec(BaseModel):
    """Contents of a spec file such as `configs/models/tiny.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    architecture: Literal["qwen3"] = "qwen3"
    model: ModelSpec
    tokenizer: TokenizerSpec


def read_spec(path: Path) -> PolicySpec | None:
    """Reads a spec file; None if it names another architecture than Qwen3.

    Raises:
        ConfigError: The file is missing, is not TOML, or has an unknown or wrong entry.
    """
    try:
        entries = parse_toml(path.read_text(encoding="utf-8"))
        if entries.get("architecture", "qwen3") != "qwen3":
            return None
        return PolicySpec.model_validate(entries)
    except OSError as error:
        raise ConfigError(f"The model spec {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"The model spec {path} is not valid TOML: {error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"The model spec {path}, {where}: {first['msg']}.") from error


def create_policy(spec: PolicySpec, texts: Sequence[str], folder: Path, seed: int) -> None:
    """Writes a Hugging Face model folder with an untrained policy.

    Args:
        spec: Sizes of the network and of the vocabulary.
        texts: Texts of the demonstrations: system texts, tool schemas, questions, calls as JSON, tool replies. Each
            counts as often as it occurs.
        folder: Folder to write, created if missing; existing files are overwritten.
        seed: Seed of all weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _learn_tokenizer(spec.tokenizer, texts)
    _save_tokenizer(tokenizer, folder, spec.model.max_context)
    _save_model(spec.model, tokenizer, folder, seed)


def _learn_tokenizer(spec: TokenizerSpec, texts: Sequence[str]) -> Tokenizer:
    """Byte-level BPE with frequent words whole, phrases and control tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    lines = Counter(line for text in texts for line in text.split("\n") if len(line) > 1)
    most = max(lines.values(), default=0)
    phrases = _phrases(spec, [line for line, count in sorted(lines.items()) if count >= spec.line_share * most])
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    known = re.compile("|".join(map(re.escape, sorted(phrases, key=len, reverse=True))))
    pieces = Counter(piece for text in texts for piece in known.split(text))
    words: Counter[str] = Counter()
    for piece, count in pieces.items():
        for word, _ in splitter.pre_tokenize_str(piece):
            words[word] += count
    room = spec.vocab_size - len(SPECIAL_TOKENS) - len(TAG_TOKENS) - len(phrases)
    vocabulary, merges = _spell(words, sorted(pre_tokenizers.ByteLevel.alphabet()), spec, most, room)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in (*TAG_TOKENS, *phrases)])
    return tokenizer


def _spell(
    words: Counter[str], alphabet: Sequence[str], spec: TokenizerSpec, most: int, room: int
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges: the alphabet, pieces of rare words, then frequent words as wholes."""
    from tokenizers import Tokenizer, models, trainers

    whole = [word for word, count in sorted(words.items()) if count >= spec.word_share * most]
    rare = (word for word, count in sorted(words.items()) if count < spec.word_share * most for _ in range(count))
    trainer = trainers.BpeTrainer(
        vocab_size=max(len(alphabet), room - len(whole)),
        min_frequency=max(2, round(spec.merge_share * most)),
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    speller = Tokenizer(models.BPE())
    speller.train_from_iterator(rare, trainer)
    learned = json.loads(speller.to_str())["model"]
    vocabulary: dict[str, int] = learned["vocab"]
    for word in whole:
        vocabulary.setdefault(word, len(vocabulary))
    return vocabulary, [(first, second) for first, second in learned["merges"]]


def _phrases(spec: TokenizerSpec, lines: Sequence[str]) -> list[str]:
    """The given phrases, the texts of the chat template itself, and the given lines; no control-token strings."""
    candidates = (*spec.phrases, *_template_texts(), *lines)
    return list(dict.fromkeys(piece for text in candidates for piece in _CONTROL.split(text) if len(piece) > 1))


def _template_texts() -> list[str]:
    """The texts that the chat template writes around contents, tools and control tokens."""
    from jinja2 import Environment

    slot = "\0"
    roles = ("system", "user", "assistant", "tool", "user")
    template = Environment(autoescape=False).from_string(CHAT_TEMPLATE.read_text(encoding="utf-8"))
    rendered = template.render(messages=[{"role": role, "content": slot} for role in roles], tools=[{}])
    return rendered.replace("{}", slot).split(slot)


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, max_context: int) -> None:
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=max_context,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    fast.save_pretrained(folder, save_jinja_files=False)


def _save_model(spec: ModelSpec, tokenizer: Tokenizer, folder: Path, seed: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.key_value_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        max_position_embeddings=spec.max_context,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        initializer_range=spec.initializer_range,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = [end, pad]
    model.save_pretrained(folder)
