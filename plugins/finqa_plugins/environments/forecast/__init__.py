"""The `forecast` environment: questions about the future of shares, weighted by uncertainty, calibration measured."""
