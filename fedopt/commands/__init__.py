"""The commands: parse arguments, print results."""
