"""An app for the workers of the compose file: replace it with yours."""

import os

from penstock import Penstock

app = Penstock(os.environ["PENSTOCK_STORE"])


@app.task
async def greet(name: str) -> str:
    """Return a greeting."""
    return f"Hello, {name}!"
