"""The commands: parse words, print what comes back."""
