"""Rewrites the embedded data set: `python -m finqa_cli.data`."""

from finqa_cli.data.embedded import EMBEDDED_FILE, EMBEDDED_SPEC, write_embedded
from finqa_cli.data.generate import generate

write_embedded(generate(EMBEDDED_SPEC), EMBEDDED_FILE)
