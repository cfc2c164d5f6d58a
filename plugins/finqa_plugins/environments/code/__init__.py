"""The code environments `code` and `mbpp`: the policy writes functions, which tests judge in a sandbox."""
