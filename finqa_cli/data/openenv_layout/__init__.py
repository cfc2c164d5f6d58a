"""The data folder of the OpenEnv FinQA environment: read, checked, imported, written."""
