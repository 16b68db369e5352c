"""Preparing a data set: every image decoded once into files that training maps into memory.

The work is done in a staging folder: `.partial` in the folder of the result, or in the user's cache
if the result is remote. Only when all of it is good does anything get its name in the result, the
manifest last. Interrupted, the same call goes on from the chunks that are done.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from raysim.data.findings import KINDS, Policy
from raysim.data.listing import Listing
from raysim.data.prepared import (
    MANIFEST,
    DomainEntry,
    Manifest,
    check_files,
    content_hash,
    filesystem,
    read_manifest,
)
from raysim.data.preparing import staging
from raysim.data.preparing.assembling import (
    LocalTarget,
    RemoteTarget,
    Target,
    domain_entry,
    file_names,
    write_domain,
)
from raysim.data.preparing.staging import Chunk
from raysim.data.preparing.survey import Job, Survey, complaints, make_job, report, survey
from raysim.data.preparing.workers import decode_chunks
from raysim.errors import ConfigError, DataError

REPORT = "report.json"
"""What was found and counted, beside the manifest; the only file that bad input leaves."""
Progress = Callable[[int, int], None]
"""Called with the images done and all images; the first call counts what an earlier one did."""
_PARTIAL = ".partial"
_FORMER = "former.json"
_MAX_SIZE = 4096


class FaultyData(DataError):
    """The source has faults that the policies do not let pass."""

    def __init__(self, message: str, findings: Mapping[str, Mapping[str, object]]) -> None:
        """Keep the findings by kind, as `Findings.as_json` returns them."""
        super().__init__(message)
        self.findings = findings


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

    Raises:
        ConfigError: the size is out of range.
        FaultyData: a finding's policy is `error`; the report names the files.
        DataError: `out` cannot be written, or another process is preparing it.
        RunError: a worker process was killed.
    """
    if not 1 <= size <= _MAX_SIZE:
        raise ConfigError(f"size={size}: must be 1 to {_MAX_SIZE} pixels")
    job = make_job(listing, name, size, policies)
    fingerprint = job.fingerprint()
    there = _already(out, fingerprint)
    if there is not None:
        return there
    files, path = filesystem(out)
    is_local = isinstance(files, pafs.LocalFileSystem)
    folder = Path(path) / _PARTIAL if is_local else _cache_folder(out)
    try:
        with staging.hold(folder, fingerprint, out):
            # Before decoding, because it fails where nothing can be written.
            target = LocalTarget(Path(path), folder) if is_local else RemoteTarget(files, path)
            chunks = job.chunks(folder)
            _decode([chunk for found in chunks.values() for chunk in found], processes, progress)
            shown = survey(job, chunks)
            text = _as_text(report(job, shown))
            refused = complaints(job, shown)
            if refused:
                target.write(REPORT, text)
                staging.drop(folder)
                lines = [f"{name} cannot be prepared:", *refused, f"all names: {out}/{REPORT}"]
                raise FaultyData("\n  ".join(lines), shown.findings.as_json(job.policies))
            entries = _write_domains(job, shown, chunks, folder)
            manifest = _manifest(job, shown, entries, dict(source), fingerprint)
            _publish(manifest, text, target, folder, out)
            return manifest
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


def _cache_folder(out: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    key = hashlib.sha256(out.encode()).hexdigest()[:16]
    return Path(cache) / "raysim" / "partial" / key


def _decode(chunks: Sequence[Chunk], processes: int, progress: Progress | None) -> None:
    """Decode the chunks that are not done."""
    total = sum(len(chunk.records) for chunk in chunks)
    left = [chunk for chunk in chunks if not staging.is_done(chunk)]
    done = total - sum(len(chunk.records) for chunk in left)

    def advance(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, total)

    advance(0)
    decode_chunks(left, processes, lambda chunk: advance(len(chunk.records)))


def _write_domains(
    job: Job, shown: Survey, chunks: Mapping[str, Sequence[Chunk]], folder: Path
) -> tuple[DomainEntry, ...]:
    """Write the files of the domains into the staging folder."""
    entries = []
    for domain, file in file_names(entry.name for entry in shown.entries).items():
        keep = shown.keep[domain]
        sha256, num_bytes = write_domain(folder / file, chunks[domain], keep, job.size)
        counted = domain_entry(domain, shown.rows[domain], keep, job.classes)
        entries.append(
            counted.model_copy(update={"file": file, "sha256": sha256, "num_bytes": num_bytes})
        )
    return tuple(entries)


def _manifest(
    job: Job,
    shown: Survey,
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
        findings=shown.findings.as_json(job.policies),
    )


def _publish(manifest: Manifest, text: str, target: Target, folder: Path, out: str) -> None:
    """Put a complete result in the place of what is there.

    A former manifest goes first, so that it never stands beside files that are not its own; which
    files were its own is remembered in the staging folder.
    """
    memory = folder / _FORMER
    former = set(json.loads(memory.read_text())) if memory.is_file() else set()
    former |= _files_of(out)
    staging.write_aside(memory, json.dumps(sorted(former)).encode())
    target.remove(MANIFEST)
    for entry in manifest.domains:
        target.put(folder / entry.file, entry.file)
    target.write(REPORT, text)
    target.write(MANIFEST, _as_text(manifest.model_dump(mode="json")))
    for file in sorted(former - {entry.file for entry in manifest.domains}):
        target.remove(file)
    staging.drop(folder)


def _files_of(out: str) -> set[str]:
    """Return the files that the manifest in a folder names and that can only be its own."""
    try:
        manifest = read_manifest(out)
    except DataError:  # damaged or of another version: what it means is not known
        return set()
    files = [entry.file for entry in manifest.domains] if manifest is not None else []
    return {file for file in files if Path(file).name == file and file.endswith(".arrow")}


def _as_text(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _cannot_write(out: str, folder: Path, error: OSError) -> DataError:
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"what is done is kept in {folder}: make room and run the same command again"
    else:
        remedy = "choose another folder, or see to its permissions"
    return DataError(f"{out}: cannot be written: {reason}{where}; {remedy}")
