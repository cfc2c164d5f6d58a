"""Generated data sets of 10-K-like companies, and the one that ships with the package."""
