"""``python -m imagefactory``."""

from imagefactory.cli import main

if __name__ == "__main__":
    main()
