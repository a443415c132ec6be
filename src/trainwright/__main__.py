"""`python -m trainwright ...` is `trainwright ...`, for where scripts are not on the path."""

from trainwright.cli import main

if __name__ == "__main__":
    main()
