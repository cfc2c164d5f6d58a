"""Does training while rollouts go on pay, and does it learn as much?"""
