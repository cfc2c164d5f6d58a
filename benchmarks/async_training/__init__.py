"""Does training while rollouts continue pay, and does it learn as much?"""
