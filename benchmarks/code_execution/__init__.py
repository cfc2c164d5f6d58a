"""Code that a policy wrote: does it stay in its box, can it cheat, and what does that cost?"""
