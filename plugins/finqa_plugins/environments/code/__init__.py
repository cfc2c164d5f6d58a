"""The code environments `code` and `mbpp`: functions that the policy writes, judged by tests in a sandbox."""
