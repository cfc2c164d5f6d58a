"""Models that `finqa model get` has put into FINQA_HOME: `--model NAME` works without a network from then on."""

from finqa_cli.local_models.gguf_header import GgufFile, GgufTensor, read_gguf
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
    "find_model",
    "is_model_name",
    "model_folder",
    "models_folder",
    "read_gguf",
    "read_record",
    "write_record",
]
