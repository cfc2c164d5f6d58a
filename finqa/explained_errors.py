"""Errors for callers: errors that a user can fix become errors of finqa, without secrets, with the remedy as a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from finqa_cli.boundary import explain
from finqa_cli.masking import Masker


@contextmanager
def explained() -> Iterator[None]:
    """Convert exceptions that the command line explains to errors of finqa; tracebacks show the remedy as `fix: ...`.

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
