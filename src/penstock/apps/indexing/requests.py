"""Turns requests into the arguments of jobs, and refuses fields that cannot be honoured."""

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.apps.indexing import shapes
from penstock.apps.indexing.job import Choice, Cutting, Parameters, Watching
from penstock.apps.indexing.places import OutOfBounds, Places
from penstock.apps.kit import Problem, Statuses

_STATUSES = Statuses({OutOfBounds: 400})


def index_parameters(
    body: shapes.IndexRequest, asked: shapes.HowAsked, places: Places
) -> Parameters:
    """Return the arguments of a job that indexes a folder."""
    folder = admitted(places, body.folder_path)
    if not Path(folder).is_dir():
        raise Problem(400, f"{body.folder_path} is not a folder", field="folder_path")
    on = None if body.watch_mode is None else body.watch_mode == "auto"
    return Parameters(
        folder=folder,
        collection=body.collection,
        choice=_choice(body),
        cutting=_cutting(body),
        watching=Watching(on=on, debounce=body.watch_debounce_seconds),
        metadata_file=_metadata_file(body, places),
        force=body.force or asked.force,
    )


def add_parameters(body: shapes.AddRequest, asked: shapes.HowAsked, places: Places) -> Parameters:
    """Return the arguments of a job that adds files and folders."""
    given = [*body.paths, *([] if body.folder_path is None else [body.folder_path])]
    if not given:
        raise Problem(400, "paths: name at least one file or folder", field="paths")
    paths = sorted({admitted(places, path) for path in given})
    around = os.path.commonpath(paths)
    return Parameters(
        folder=around if Path(around).is_dir() else str(Path(around).parent),
        operation="add",
        paths=tuple(paths),
        collection=body.collection,
        choice=_choice(body),
        cutting=_cutting(body),
        metadata_file=_metadata_file(body, places),
        force=body.force or asked.force,
    )


def admitted(places: Places, path: str) -> str:
    """Return a path that may be indexed, as it is stored; otherwise raise the `Problem` 400."""
    with _STATUSES.answering():
        return places.admit(path)


def _metadata_file(body: shapes.Wanted, places: Places) -> str | None:
    file = body.folder_metadata_file
    return None if file is None else admitted(places, file)


def _choice(body: shapes.Wanted) -> Choice:
    from penstock.apps.indexing.selection import LANGUAGE_NAMES, PRESETS

    if body.injector_script is not None:
        raise Problem(
            400,
            "injector_script: this server does not run code from requests; for metadata that all "
            "chunks of a folder share, use folder_metadata_file",
            field="injector_script",
        )
    if body.generate_summaries:
        raise Problem(
            400,
            "generate_summaries: this server has no language model to write summaries",
            field="generate_summaries",
        )
    languages = _known("supported_languages", body.supported_languages, LANGUAGE_NAMES)
    types = _known("include_types", body.include_types, tuple(PRESETS))
    return Choice(
        recursive=body.recursive,
        include_code=body.include_code,
        languages=languages,
        include=_patterns("include_patterns", body.include_patterns),
        exclude=_patterns("exclude_patterns", body.exclude_patterns),
        types=types,
    )


def _cutting(body: shapes.Wanted) -> Cutting:
    if body.chunk_overlap * 2 > body.chunk_size:
        raise Problem(
            400, "chunk_overlap: must be at most half of chunk_size", field="chunk_overlap"
        )
    return Cutting(
        size=body.chunk_size, overlap=body.chunk_overlap, strategy=body.code_chunk_strategy
    )


def _known(field: str, given: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(sorted({name.strip().lower() for name in given or ()} - {""}))
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(sorted(known))
        raise Problem(400, f"{field}: {unknown[0]!r} is unknown; choose from {listed}", field=field)
    return names


def _patterns(field: str, given: Sequence[str] | None) -> tuple[str, ...]:
    from penstock.vectors import parse_patterns as spec

    patterns = tuple(pattern for pattern in given or () if pattern.strip())
    try:
        spec(patterns)
    except ValueError as error:
        raise Problem(400, f"{field}: {error}", field=field) from error
    return patterns
