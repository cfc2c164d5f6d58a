"""The table of model providers: what `PROVIDER/MODEL` means as a target, and which engine, address and key it needs.

Addresses and dialects are those of the providers' API references. Only OpenAI's and Anthropic's protocols were
re-created on loopback, and no provider was called: `pytest -m cloud` does that with keys. A model that a provider
serves under a further name, such as `openrouter/meta-llama/llama-3.3-70b-instruct`, keeps it after the first `/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProvider:
    """One provider.

    Attributes:
        name: The word before the first `/` of a target.
        title: Its name in messages.
        base_url: Address of its API; empty if each account has its own, see `url_variable`.
        key_variable: Environment variable with the API key.
        needs_key: Whether every request needs the key.
        url_variable: Environment variable with another address; empty if there is none.
        url_suffix: What is appended to the address of the variable if it is missing there.
        engine: The engine that speaks its dialect.
        options: Further options of the engine: what this dialect calls differently, or refuses.
        served: Pattern of the model names that it serves, where a hub id may begin with the same word.
    """

    name: str
    title: str
    base_url: str
    key_variable: str
    needs_key: bool = True
    url_variable: str = ""
    url_suffix: str = ""
    engine: str = "openai"
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    served: str = ".*"

    @property
    def host(self) -> str:
        """Host name of its address; empty if each account has its own."""
        return urlsplit(self.base_url).hostname or ""


_PROVIDERS = (
    ModelProvider(
        name="openai",
        title="OpenAI",
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        url_variable="OPENAI_BASE_URL",
        served=r"(?!gpt-oss|whisper|clip|gpt2|privacy|circuit|diffusers|shap|point|consistency|welm).*",
    ),
    ModelProvider(
        name="anthropic",
        title="Anthropic",
        base_url="https://api.anthropic.com/v1",
        key_variable="ANTHROPIC_API_KEY",
        url_variable="ANTHROPIC_BASE_URL",
        url_suffix="/v1",
        engine="anthropic",
    ),
    ModelProvider(
        name="google",
        title="Google Gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variable="GEMINI_API_KEY",
        options={"omit": ["seed", "parallel_tool_calls"]},
        served=r"gemini.*",
    ),
    ModelProvider(
        name="openrouter",
        title="OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        options={"extra_body": {"usage": {"include": True}}},
    ),
    ModelProvider(
        name="together", title="Together AI", base_url="https://api.together.xyz/v1", key_variable="TOGETHER_API_KEY"
    ),
    ModelProvider(
        name="mistral",
        title="Mistral AI",
        base_url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        options={"omit": ["seed"]},  # it is called random_seed there
    ),
    ModelProvider(name="groq", title="Groq", base_url="https://api.groq.com/openai/v1", key_variable="GROQ_API_KEY"),
    ModelProvider(
        name="deepseek",
        title="DeepSeek",
        base_url="https://api.deepseek.com/v1",
        key_variable="DEEPSEEK_API_KEY",
        options={"omit": ["seed", "parallel_tool_calls"]},
        served=r"deepseek-(chat|reasoner)",
    ),
    ModelProvider(name="xai", title="xAI", base_url="https://api.x.ai/v1", key_variable="XAI_API_KEY"),
    ModelProvider(
        name="fireworks",
        title="Fireworks AI",
        base_url="https://api.fireworks.ai/inference/v1",
        key_variable="FIREWORKS_API_KEY",
    ),
    ModelProvider(
        name="azure",
        title="Azure OpenAI",
        base_url="",
        key_variable="AZURE_OPENAI_API_KEY",
        url_variable="AZURE_OPENAI_ENDPOINT",
        url_suffix="/openai/v1",
        options={"max_tokens_field": "max_completion_tokens"},
    ),
    ModelProvider(
        name="vllm",
        title="vLLM server",
        base_url="http://127.0.0.1:8000/v1",
        key_variable="VLLM_API_KEY",
        needs_key=False,
        url_variable="VLLM_BASE_URL",
        url_suffix="/v1",
    ),
    ModelProvider(
        name="sglang",
        title="SGLang server",
        base_url="http://127.0.0.1:30000/v1",
        key_variable="SGLANG_API_KEY",
        needs_key=False,
        url_variable="SGLANG_BASE_URL",
        url_suffix="/v1",
    ),
    ModelProvider(
        name="ollama",
        title="Ollama",
        base_url="http://127.0.0.1:11434/v1",
        key_variable="OLLAMA_API_KEY",
        needs_key=False,
        url_variable="OLLAMA_BASE_URL",
        url_suffix="/v1",
    ),
    ModelProvider(
        name="lmstudio",
        title="LM Studio",
        base_url="http://127.0.0.1:1234/v1",
        key_variable="LMSTUDIO_API_KEY",
        needs_key=False,
        url_variable="LMSTUDIO_BASE_URL",
        url_suffix="/v1",
    ),
    ModelProvider(
        name="llamacpp",
        title="llama.cpp server",
        base_url="http://127.0.0.1:8080/v1",
        key_variable="LLAMACPP_API_KEY",
        needs_key=False,
        url_variable="LLAMACPP_BASE_URL",
        url_suffix="/v1",
    ),
)

PROVIDERS: Mapping[str, ModelProvider] = MappingProxyType({each.name: each for each in _PROVIDERS})
"""Provider by the word before the first `/` of a target."""

_BY_HOST = {each.host: each for each in _PROVIDERS if each.needs_key and each.host}
_AZURE = (".openai.azure.com", ".services.ai.azure.com")


def split_target(target: str) -> tuple[ModelProvider, str] | None:
    """Return the provider and the model's name there; None if the target does not begin with a provider.

    A name that only the hub has, such as `google/gemma-2-2b-it` or `openai/gpt-oss-20b`, belongs to no provider.
    """
    word, slash, model = target.partition("/")
    provider = PROVIDERS.get(word)
    if provider is None or not slash or not model or not re.fullmatch(provider.served, model):
        return None
    return provider, model


def provider_at(base_url: str) -> ModelProvider | None:
    """Return the hosted provider with this address; None for other servers."""
    host = urlsplit(base_url).hostname or ""
    return PROVIDERS["azure"] if host.endswith(_AZURE) else _BY_HOST.get(host)
