"""Reads texts and images of messages as users write them: content parts, bytes of an image, or a Pillow image."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
"""First bytes of the image formats that models read; WebP is recognized by bytes at two positions."""


def read_content(content: Any) -> tuple[str, tuple[str, ...]]:
    """Return the text of a message's content and its images, which follow the text.

    Args:
        content: A text, or parts: texts, images (see `image_address`), or mappings as in chat completions,
            `{"type": "text", "text": ...}` and `{"type": "image_url", "image_url": {"url": ...}}`.
            Source: https://platform.openai.com/docs/api-reference/chat/create.

    Raises:
        ValueError: The content is something else.
    """
    if isinstance(content, str):
        return content, ()
    parts = content if isinstance(content, list | tuple) else [content]
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif (address := image_address(part)) is not None:
            images.append(address)
        else:
            raise ValueError("content must be a text, or a list of texts and images")
    return "\n".join(texts), tuple(images)


def image_address(value: Any) -> str | None:
    """Return the address of an image, usually as a data URI; None if the value is not an image.

    Args:
        value: Bytes of a PNG, JPEG, GIF or WebP file, a Pillow image, or a part with an `image_url`, which is a web
            address or a data URI.
    """
    if isinstance(value, bytes):
        kind = next((kind for start, kind in _SIGNATURES.items() if value.startswith(start)), None)
        if value[:4] == b"RIFF" and value[8:12] == b"WEBP":
            kind = "webp"
        return None if kind is None else f"data:image/{kind};base64,{base64.b64encode(value).decode()}"
    if type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "save"):
        file = io.BytesIO()
        value.save(file, format="PNG")
        return image_address(file.getvalue())
    if isinstance(value, Mapping) and value.get("type") == "image_url":
        given = value.get("image_url")
        address = given.get("url") if isinstance(given, Mapping) else given
        return (
            address if isinstance(address, str) and address.startswith(("data:image/", "https://", "http://")) else None
        )
    return None


def has_images(value: Any) -> bool:
    """Whether a value is an image, or a sequence with one among its members."""
    members: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    return any(image_address(member) is not None for member in members)
