"""Commands about data sets: making, importing and checking them, and compiling snapshots."""
