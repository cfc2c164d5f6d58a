"""The `mbpp` environment: basic Python problems with tests, solved in several attempts with feedback in between."""
