"""``python -m partlabel``: the same as the command ``partlabel``."""

from partlabel.cli import run

if __name__ == "__main__":
    run()
