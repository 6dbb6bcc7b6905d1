"""``python -m partlabel``: the same as the command ``partlabel``."""

from partlabel.cli import main

if __name__ == "__main__":
    main()
