"""Entry point; measuring processes re-import this module, so it must stay light."""

if __name__ == "__main__":
    from benchmarks.cli import main

    raise SystemExit(main())
