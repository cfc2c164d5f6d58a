"""Code that a policy wrote: does it stay in its sandbox, can it cheat, and what does that cost?"""
