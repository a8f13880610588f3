"""`python -m specpipe` is the same as `specpipe`."""

from specpipe.cli.main import main

if __name__ == "__main__":
    main()
