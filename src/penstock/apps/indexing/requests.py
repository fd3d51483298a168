"""Makes a job of a request: checks every field, and refuses what cannot be done."""

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.apps.indexing import shapes
from penstock.apps.indexing.parameters import Choice, Cutting, Parameters, Watching
from penstock.apps.indexing.places import OutOfBounds, Places
from penstock.http.problems import Problem


def index_parameters(
    body: shapes.IndexRequest, asked: shapes.HowAsked, places: Places
) -> Parameters:
    """A folder as a job."""
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
    """Files and folders as a job."""
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
    """A path that may be indexed, as it is stored; else 400."""
    try:
        return places.admit(path)
    except OutOfBounds as error:
        raise Problem(400, str(error)) from error


def _metadata_file(body: shapes.Wanted, places: Places) -> str | None:
    file = body.folder_metadata_file
    return None if file is None else admitted(places, file)


def _choice(body: shapes.Wanted) -> Choice:
    from penstock.apps.indexing.choosing import LANGUAGE_NAMES, PRESETS

    if body.injector_script is not None:
        raise Problem(
            400,
            "injector_script: this server runs no code that a request names; what all chunks of a "
            "folder have in common can be given as folder_metadata_file",
            field="injector_script",
        )
    if body.generate_summaries:
        raise Problem(
            400,
            "generate_summaries: this server has no language model to write summaries with",
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
            400, "chunk_overlap: at most half of chunk_size can be shared", field="chunk_overlap"
        )
    return Cutting(
        size=body.chunk_size, overlap=body.chunk_overlap, strategy=body.code_chunk_strategy
    )


def _known(field: str, given: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(sorted({name.strip().lower() for name in given or ()} - {""}))
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(sorted(known))
        raise Problem(400, f"{field}: there is no {unknown[0]!r}; known are {listed}", field=field)
    return names


def _patterns(field: str, given: Sequence[str] | None) -> tuple[str, ...]:
    from penstock.vectors.walking import spec

    patterns = tuple(pattern for pattern in given or () if pattern.strip())
    try:
        spec(patterns)
    except ValueError as error:
        raise Problem(400, f"{field}: {error}", field=field) from error
    return patterns
