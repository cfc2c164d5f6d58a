"""Entry point of `python -m finqa_cli`."""

import sys

from finqa_cli.start import main

if __name__ == "__main__":
    sys.exit(main())
