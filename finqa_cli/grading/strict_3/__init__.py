"""Grades an answer by profile `strict-3`: the answer is exactly one value in a common notation, or it is unreadable.

The form of an answer is agreed when it is submitted (see the description of `submit_answer`), so nothing is guessed
from prose. `wrapping.py` removes what stands around a value, `amounts.py` reads numbers with their units,
`submitted_values.py` reads numbers, dates, yes, no, names and lists of them, and `value_verdict.py` compares them.

Whether an answer is readable depends on its text, the question, and on the kind of the truth (a number and its
currency, a yes or no, a name, a list), but never on the truth's value: who is asked again learns nothing about it.
"""
