"""The commands: parse arguments and print results."""
