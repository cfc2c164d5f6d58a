"""Groups of commands whose help is the same in every call. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

import typer.core


class HelpGroup(typer.core.TyperGroup):
    """A group of commands that names the options of its help in the order in which they are declared."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        """Return the names; Click keeps them in a set, whose order differs between two calls."""
        return sorted(super().get_help_option_names(ctx), key=ctx.help_option_names.index)
