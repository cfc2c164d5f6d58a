"""rLLM-FinQA: import of its tables and questions."""
