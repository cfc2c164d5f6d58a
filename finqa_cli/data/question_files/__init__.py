"""Question files: rows in JSON, JSONL, CSV and Parquet."""
