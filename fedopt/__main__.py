"""`python -m fedopt`, the same as the `fedopt` command."""

from fedopt.cli import main

if __name__ == "__main__":
    main()
