"""CoreWeave's sandbox service on 127.0.0.1 for tests: the real SDK talks to it unmodified.

Needs the extra `coreweave`. `LoopbackCoreWeave` runs in a process of its own;
`python -m finqa_cli.testing.coreweave.serve_coreweave` serves from a shell.
"""
