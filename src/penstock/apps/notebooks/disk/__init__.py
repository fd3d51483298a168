"""The disk: files of a notebook, written safely, scanned and watched."""
