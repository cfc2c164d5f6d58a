"""Registers the chat codecs."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl

_PACKAGE = "finqa_plugins.codecs"


@hookimpl
def register_components() -> list[Component]:
    """Registers the codecs, the choice between them, and the formats in which models write calls."""
    codecs = {
        "auto": ("choose:choose_codec", "AutoCodecConfig", "template for models with a chat template, else plain"),
        "plain": (
            "plain:PlainCodec",
            "PlainCodecConfig",
            "roles as text, turns end with the end token: for models without a chat template",
        ),
        "template": (
            "template_codec:TemplateCodec",
            "TemplateCodecConfig",
            "the model's own chat template; where it has no tools, they are text in its system message",
        ),
    }
    template = codecs["template"]
    for family in ("llama3", "qwen2.5", "qwen3"):
        codecs[family] = (*template[:2], "earlier name of codec template, for runs that have it")
    formats = {
        "hermes": ("json_formats:HermesFormat", "JSON between <tool_call> tags: Qwen2.5, Qwen3, the embedded policy"),
        "llama3_json": ("json_formats:Llama3JsonFormat", "bare JSON with parameters: Llama 3.1 to 3.3"),
        "xml": ("xml_format:XmlFormat", "one tag for each parameter: Qwen3-Coder, Qwen3.5"),
    }
    return [
        *(
            Component(kind="call_format", name=name, target=f"{_PACKAGE}.{target}", summary=summary)
            for name, (target, summary) in formats.items()
        ),
        *(
            Component(
                kind="codec",
                name=name,
                target=f"{_PACKAGE}.{target}",
                config=f"{_PACKAGE}.config:{config}",
                summary=summary,
                requires=("transformers", "jinja2"),
                extra="train",
            )
            for name, (target, config, summary) in codecs.items()
        ),
    ]
