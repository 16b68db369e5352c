"""Preparing a data set: every image decoded once into files that training maps into memory.

The work is done in a staging folder: `.partial` in the folder of the result, or in the user's cache
if the result is remote. Only when all of it is good does anything get its name in the result, the
manifest last. Interrupted, the same call goes on from the chunks that are done.
"""

import errno
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from raysim.data.findings import KINDS, Policy
from raysim.data.listing import Listing
from raysim.data.places import cache_folder, filesystem
from raysim.data.prepared import (
    MANIFEST,
    DomainEntry,
    Manifest,
    check_files,
    content_hash,
    read_manifest,
)
from raysim.data.preparing import staging
from raysim.data.preparing.assembling import LocalTarget, RemoteTarget, Target, write_domain
from raysim.data.preparing.foreign import check_result
from raysim.data.preparing.staging import Chunk
from raysim.data.preparing.survey import Job, Survey, complaints, make_job, report, take_survey
from raysim.data.preparing.workers import decode_chunks
from raysim.errors import DataError

REPORT = "report.json"
"""What was found and counted, beside the manifest."""
REFUSED = "refused.json"
"""The same of input that was refused; the only file that it leaves."""
CHUNK_RECORDS = 1024
"""Images that a process decodes at a time; a process that is killed loses no more."""
Progress = Callable[[int, int], None]
"""Called with the images done and all images; the first call counts what an earlier one did."""
_PARTIAL = ".partial"


class FaultyData(DataError):
    """The source has faults that the policies do not let pass."""

    def __init__(self, message: str, findings: Mapping[str, Mapping[str, object]]) -> None:
        """Keep the findings by kind, as `Findings.as_json` returns them."""
        super().__init__(message)
        self.findings = findings


class Unwritable(DataError):
    """The place of the result cannot be written."""


def prepare(
    listing: Listing,
    *,
    name: str,
    out: str,
    size: int,
    policies: Mapping[str, Policy],
    source: Mapping[str, Any],
    processes: int,
    progress: Progress | None = None,
    on_wait: Callable[[str], None] | None = None,
    chunk_records: int = CHUNK_RECORDS,
) -> Manifest:
    """Decode a source into prepared data.

    The result does not depend on the number of processes, nor on interruptions. Where the result
    is there already, nothing is done.

    Args:
        listing: the source.
        name: the data set.
        out: folder of the result, a path or a URI.
        size: height and width of the images.
        policies: every kind's policy.
        source: what the manifest says of where the data came from: reader and root.
        processes: worker processes, at least 1.
        progress: told how many images are done.
        on_wait: told whom it waits for where another process is preparing `out`; None refuses.
        chunk_records: images that are decoded at a time, at least 1.

    Raises:
        FaultyData: a finding's policy is `error`; a file names what was found.
        Unwritable: `out` cannot be written.
        DataError: another process is preparing `out`, or files of others are in the way.
        RunError: a worker process was killed.
    """
    job = make_job(listing, name, size, policies)
    fingerprint = job.fingerprint()
    files, path = filesystem(out)
    is_local = isinstance(files, pafs.LocalFileSystem)
    folder = Path(path) / _PARTIAL if is_local else _remote_staging(out)
    there = _already(out, fingerprint)
    if there is not None and not folder.exists():
        return there
    try:
        check_result(files, path, (MANIFEST, REPORT, REFUSED))
        with staging.hold(folder, fingerprint, out, on_wait):
            there = _already(out, fingerprint)  # the process that held it may just have made it
            if there is None:
                # Before decoding, because it fails where nothing can be written.
                target = LocalTarget(Path(path), folder) if is_local else RemoteTarget(files, path)
                chunks = job.chunks(folder, chunk_records)
                _decode(chunks, processes, progress)
                survey = take_survey(job, chunks)
                _check(job, survey, target, folder, out)
                entries = _write_domains(job, survey, chunks, folder)
                there = _manifest(job, survey, entries, dict(source), fingerprint)
                _publish(there, _as_text(report(job, survey)), target, folder, out)
            staging.drop(folder)
            return there
    except OSError as error:
        raise _cannot_write(out, folder, error) from None


def _already(out: str, fingerprint: str) -> Manifest | None:
    """Return the manifest of a whole result of the same source and request."""
    try:
        manifest = read_manifest(out)
        if manifest is None or manifest.source.get("fingerprint") != fingerprint:
            return None
        check_files(out, manifest)
    except DataError:  # damaged, or of another version: it is made anew
        return None
    return manifest


def _remote_staging(out: str) -> Path:
    return cache_folder("partial", hashlib.sha256(out.encode()).hexdigest()[:16])


def _decode(
    chunks: Mapping[str, Sequence[Chunk]], processes: int, progress: Progress | None
) -> None:
    """Decode the chunks that are not done."""
    every = [chunk for of_domain in chunks.values() for chunk in of_domain]
    total = sum(len(chunk.records) for chunk in every)
    left = [chunk for chunk in every if not staging.is_done(chunk)]
    done = total - sum(len(chunk.records) for chunk in left)

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, total)

    advance(0)
    decode_chunks(left, processes, lambda chunk: advance(len(chunk.records)))


def _check(job: Job, survey: Survey, target: Target, folder: Path, out: str) -> None:
    """Refuse what the policies do not let pass."""
    refused = complaints(job, survey)
    if refused:
        target.write(REFUSED, _as_text(report(job, survey)))
        staging.drop(folder)
        lines = [f"{job.name} cannot be prepared:", *refused, f"all names: {out}/{REFUSED}"]
        raise FaultyData("\n  ".join(lines), survey.findings.as_json(job.policies))


def _write_domains(
    job: Job, survey: Survey, chunks: Mapping[str, Sequence[Chunk]], folder: Path
) -> tuple[DomainEntry, ...]:
    """Write the files of the domains into the staging folder."""
    return tuple(
        write_domain(folder, counts, chunks[counts.name], survey.keep[counts.name], job.size)
        for counts in survey.counts
    )


def _manifest(
    job: Job,
    survey: Survey,
    entries: tuple[DomainEntry, ...],
    source: dict[str, Any],
    fingerprint: str,
) -> Manifest:
    source |= {
        "fingerprint": fingerprint,
        "policies": {k: p for k, p in job.policies.items() if p != KINDS[k].policy},
        "num_records": sum(map(len, job.domains.values())),
    }
    return Manifest(
        name=job.name,
        size=job.size,
        classes=job.classes,
        domains=entries,
        sha256=content_hash(job.name, job.size, job.classes, entries),
        source=source,
        findings=survey.findings.as_json(job.policies),
    )


def _publish(manifest: Manifest, text: str, target: Target, folder: Path, out: str) -> None:
    """Put a complete result in the place of what is there.

    Other content has other file names, so that both results are whole until the manifest, replaced
    at once, says which one counts.
    """
    former = _files_of(out)
    files = {entry.file for entry in manifest.domains}
    for file in sorted(files):
        target.put(folder / file, file)
    target.write(REPORT, text)
    target.write(MANIFEST, _as_text(manifest.model_dump(mode="json")))
    for file in sorted((former | {REFUSED}) - files):
        target.remove(file)


def _files_of(out: str) -> set[str]:
    """Return the files that the manifest in a folder names."""
    try:
        manifest = read_manifest(out)
    except DataError:  # damaged or of another version: what it means is not known
        return set()
    return set() if manifest is None else {entry.file for entry in manifest.domains}


def _as_text(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _cannot_write(out: str, folder: Path, error: OSError) -> Unwritable:
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"what is done is kept in {folder}: make room and run the same command again"
    else:
        remedy = "choose another folder, or see to its permissions"
    return Unwritable(f"{out}: cannot be written: {reason}{where}; {remedy}")
