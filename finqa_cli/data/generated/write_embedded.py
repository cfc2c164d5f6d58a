"""Rewrites the embedded data set: `python -m finqa_cli.data.generated.write_embedded`."""

from finqa_cli.data.generated.embedded import EMBEDDED_FILE, EMBEDDED_SPEC, write_embedded
from finqa_cli.data.generated.generate import generate

write_embedded(generate(EMBEDDED_SPEC), EMBEDDED_FILE)
