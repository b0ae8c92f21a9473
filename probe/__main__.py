"""`python -m probe` is the command `probe`."""

from probe.cli import main

if __name__ == "__main__":
    main()
