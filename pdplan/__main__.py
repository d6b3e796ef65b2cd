"""`python -m pdplan` is the same as `pdplan`."""

from pdplan.cli import main

if __name__ == "__main__":
    main()
