"""Daytona's service on 127.0.0.1 for tests and benchmarks, which the real SDK uses without modification."""
