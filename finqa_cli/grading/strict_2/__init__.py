r"""The verdict on a submitted answer, profile `strict-2`: any honest form of exactly one decision, and nothing else.

An answer is reduced in stages, and each stage may refuse it:

1. `surface.py`: typographic variants become plain; hidden characters, digits of other scripts and LaTeX that hides or
   strikes out are refused.
2. `wrappers.py`, `json_form.py`, `transcript.py`: the question again, output of programs, polite endings, thinking, end
   tokens, fences, one pair of answer tags, JSON with one answer, `\boxed`.
3. `refused_words.py`: hedges, alternatives, conditions, questions and talk to the judge are refused anywhere; words
   with a second meaning (`doubtful accounts`, `stock options`) are no hedges where the question has them.
4. For a number: `lexer.py` and `values.py` read the values with units and years; `statement.py`, `working.py`
   and `asides.py` leave the statement that decides, without its working; `direction.py` reads signs in words and finds
   inverted ratios; `question_fit.py` and `labels.py` account for every word around the value by the question;
   `numbers_read.py` takes one value, or two notations of the same amount, `years_read.py` one year;
   `lists_read.py` reads lists. For a word: one
   yes or no (`yes_no.py`), of which the reason does not deny it (`reasons.py`), or one name, date or range
   (`names_read.py`, `notations.py`).
5. `closeness.py`: the tolerance of version 1.

With the question (`question.py`) a value is read in the scale that it asks for, the numbers that only repeat it are not
candidates, and a value that is given to a year, measure or quantity that it does not ask for is refused. Two boxed
values, a range, `5 or 6`, all numbers of a table, both signs or both scales never pass. A unit in the answer is taken
at its word: 5.25% is 0.0525 and never 5.25, and `-77 billion` is not -77 million. Any answer takes time linear in its
length.
"""
