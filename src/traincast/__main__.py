"""`python -m traincast` is the command line."""

from traincast.cli import run

if __name__ == "__main__":
    run()
