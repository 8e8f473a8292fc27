"""The entry point of `python -m vidcom2`."""

from .cli.app import main

if __name__ == "__main__":
    main()
