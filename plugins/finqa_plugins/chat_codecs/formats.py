"""The formats of tool calls by name, for the codec option `tool_calls`."""

from __future__ import annotations

from typing import Literal, get_args

from finqa_plugins.chat_codecs.call_format import CallFormat
from finqa_plugins.chat_codecs.llama3_format import Llama3JsonFormat
from finqa_plugins.chat_codecs.parsing import HermesFormat
from finqa_plugins.chat_codecs.xml_format import XmlFormat

FORMATS: dict[str, CallFormat] = {"hermes": HermesFormat(), "llama3_json": Llama3JsonFormat(), "xml": XmlFormat()}
FormatName = Literal["auto", "hermes", "llama3_json", "xml"]

assert {"auto", *FORMATS} == set(get_args(FormatName))
