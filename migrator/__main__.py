"""`python -m migrator` is `cpfix`."""

from migrator.cli import main

if __name__ == "__main__":
    main()
