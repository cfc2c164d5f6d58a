"""Errors as callers see them: those of finqa where they are a user's, without secrets, with the remedy as a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from finqa_cli.boundary import explain
from finqa_cli.masking import Masker


@contextmanager
def explained() -> Iterator[None]:
    """Raise what the command line explains as an error of finqa; tracebacks show its remedy as `fix: ...`.

    A notebook saves its tracebacks, so secrets are masked here as on a terminal.
    """
    try:
        yield
    except Exception as error:
        known = explain(error)
        if known is None:
            raise
        mask = Masker()
        known.args = (mask(known.message), *known.args[1:])
        known.remedy = mask(known.remedy)
        if known.remedy and not getattr(known, "__notes__", ()):
            known.add_note(f"fix: {known.remedy}")
        if known is error:
            raise
        raise known from error
