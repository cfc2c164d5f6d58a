"""A Daytona on 127.0.0.1 for tests and benchmarks: the real SDK talks to it unmodified."""
