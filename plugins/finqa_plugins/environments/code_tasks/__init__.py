"""The `code` environment: functions that the policy writes, judged by tests in a sandbox."""
