"""The original FinQA data (arXiv 2109.00122): rows, tables, programs."""
