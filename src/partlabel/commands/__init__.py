"""One file per command: arguments in, one call, what people see out."""
