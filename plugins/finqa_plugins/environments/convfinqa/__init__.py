"""The `convfinqa` environment: a dialogue of questions about a report page, each answered with a program."""
