"""Models on this machine: those that `finqa model get` has put into FINQA_HOME, and those in the hub's cache."""

from finqa_cli.local_models.gguf_header import GgufFile, GgufTensor, read_gguf
from finqa_cli.local_models.hub_cache import cached_model, local_model
from finqa_cli.local_models.model_store import (
    KNOWN_MODELS,
    KnownModel,
    Wheel,
    find_model,
    is_model_name,
    model_folder,
    models_folder,
    read_record,
    write_record,
)

__all__ = [
    "KNOWN_MODELS",
    "GgufFile",
    "GgufTensor",
    "KnownModel",
    "Wheel",
    "cached_model",
    "find_model",
    "is_model_name",
    "local_model",
    "model_folder",
    "models_folder",
    "read_gguf",
    "read_record",
    "write_record",
]
