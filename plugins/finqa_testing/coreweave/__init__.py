"""CoreWeave's sandbox service on 127.0.0.1 for tests, which the real SDK uses without modification.

It needs the extra `coreweave`. `LoopbackCoreWeave` runs in its own process; `python -m finqa_testing.serve
coreweave` serves from a shell.
"""
