"""Searches what was ingested."""

from penstock import ConfigurationError
from penstock.apps.ingest import shapes
from penstock.apps.ingest.shelves import Place, Shelves
from penstock.http.problems import Problem


def search(shelves: Shelves, question: shapes.IngestQuestion) -> shapes.IngestResults:
    """The best chunks of a collection for a question; raises `Problem`."""
    try:
        from penstock.vectors import Where
    except ImportError as error:
        raise Problem(501, f"searching needs pip install 'penstock[ingest]': {error}") from error
    place = Place(question.tenant_id, question.collection, question.branch)
    if not shelves.has(place):
        return shapes.IngestResults(results=[])
    where = Where(under=question.under or "")
    try:
        with shelves.using(place) as collection:
            hits = collection.search(
                question.query, k=question.top_k, where=where, mode=question.mode
            )
    except ConfigurationError as error:  # it was made with another embedder
        raise Problem(409, str(error)) from error
    return shapes.IngestResults(
        results=[
            shapes.IngestResult(
                id=hit.id,
                text=hit.text,
                path=hit.path,
                score=hit.score,
                metadata=dict(hit.metadata),
            )
            for hit in hits
        ]
    )
