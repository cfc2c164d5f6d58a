"""Values as feedback shows them."""

from __future__ import annotations

_LONGEST = 300


def shown(value: object) -> str:
    """As `repr`, the same in every process (sets are sorted) and not too long."""
    text = _shown(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _shown(value: object) -> str:
    if type(value) is list:
        return f"[{', '.join(map(_shown, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    if type(value) is dict:
        return f"{{{', '.join(f'{_shown(key)}: {_shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, set | frozenset) and value:
        return f"{{{', '.join(sorted(map(_shown, value)))}}}"
    try:
        return repr(value)
    except (ArithmeticError, ValueError):  # an integer of more digits than Python writes, a Counter of signalling NaNs
        return f"a value of type {type(value).__name__}"
