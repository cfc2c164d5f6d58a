"""The commands, one module each, with a Typer instance `app`; `finqa_cli.app.COMMANDS` lists them."""
