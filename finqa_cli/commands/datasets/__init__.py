"""`finqa data`: one module per subcommand."""
