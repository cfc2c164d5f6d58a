r"""Grades an answer by profile `strict-2`, which accepts any honest form of exactly one decision, and nothing else.

An answer is reduced in stages, and each stage may refuse it:

1. `surface.py`: typographic variants become plain; hidden characters, digits of other scripts and LaTeX that hides or
   strikes out text are refused.
2. `wrappers.py`, `json_form.py`, `transcript.py` remove what surrounds the answer: a repetition of the question, output
   of programs, polite endings, thinking, end tokens, fences, one pair of answer tags, JSON with one answer, `\boxed`.
3. `refused_words.py`: hedges, alternatives, conditions, questions and text for the judge are refused anywhere. Words
   with a second meaning (`doubtful accounts`, `stock options`) are not hedges if the question has them.
4. For a number: `lexer.py` and `values.py` read the values with units and years. `statement.py`, `working.py` and
   `asides.py` keep the statement that decides, without its working. `direction.py` reads signs in words and finds
   inverted ratios. `question_fit.py` and `labels.py` check that every word around the value fits the question.
   `numbers_read.py` returns one value, or two notations of the same amount; `years_read.py` one year; `lists_read.py`
   the values of a list. For a word: one yes or no (`yes_no.py`) that its reason does not contradict (`reasons.py`), or
   one name, date or range (`names_read.py`, `notations.py`).
5. `closeness.py`: the tolerance of version 1.

With the question (`question.py`), a value is read in the scale that the question asks for. Numbers that only repeat
numbers of the question are not candidates. A value of another year, measure or quantity than the question's is refused.
Two boxed values, a range, `5 or 6`, all numbers of a table, both signs or both scales are never right. A unit in the
answer is read literally: 5.25% is 0.0525 and never 5.25, and `-77 billion` is not -77 million. Any answer takes time
linear in its length.
"""
