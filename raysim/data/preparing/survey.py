"""What is to be prepared, and what decoding all of it has shown."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.data.findings import KINDS, Findings, Policy, first_names, policy_option
from raysim.data.listing import Listing, Record
from raysim.data.prepared import FORMAT, DomainCounts
from raysim.data.preparing import staging
from raysim.data.preparing.assembling import count_rows, rows_of
from raysim.data.preparing.duplicates import keep_rows
from raysim.data.preparing.staging import Chunk, Rows
from raysim.data.splits import has_official
from raysim.errors import DataError


@dataclass(frozen=True)
class Job:
    """What is to be prepared.

    Attributes:
        name: the data set.
        size: height and width of the images.
        classes: class names by label.
        domains: records by domain.
        labels: int64 [N] by domain.
        policies: every kind's policy.
        listed: what was found before decoding.
    """

    name: str
    size: int
    classes: tuple[str, ...]
    domains: Mapping[str, Sequence[Record]]
    labels: Mapping[str, NDArray[np.int64]]
    policies: Mapping[str, Policy]
    listed: Findings

    def chunks(self, folder: Path, records_a_chunk: int) -> dict[str, list[Chunk]]:
        """Cut the records into chunks, by domain; see `staging.domain_chunks`."""
        skipped = frozenset(kind for kind, policy in self.policies.items() if policy == "skip")
        return staging.domain_chunks(
            folder, self.domains, self.labels, self.size, skipped, records_a_chunk
        )

    def fingerprint(self) -> str:
        """Return a hash of the request and of the size and time of change of every file."""
        request = [FORMAT, self.name, self.size, self.classes, sorted(self.policies.items())]
        sha = hashlib.sha256(json.dumps(request).encode())
        sha.update(json.dumps([self.listed.counts, self.listed.names]).encode())
        known: dict[Path, tuple[int, int]] = {}
        for domain, records in self.domains.items():
            sha.update(json.dumps([domain, len(records)]).encode())
            for one in records:
                stamp = staging.stamp(one.image, known)
                sha.update(json.dumps([one.name, one.class_name, one.split, *stamp]).encode())
        return sha.hexdigest()


@dataclass(frozen=True)
class Survey:
    """What decoding every image has shown.

    Attributes:
        findings: everything that was found.
        keep: bool [N] by domain: which rows stay.
        counts: of the rows that stay, for the domains that have any.
    """

    findings: Findings
    keep: Mapping[str, NDArray[np.bool_]]
    counts: tuple[DomainCounts, ...]


def make_job(listing: Listing, name: str, size: int, policies: Mapping[str, Policy]) -> Job:
    """Give every record its label.

    Args:
        listing: the source.
        name: the data set.
        size: height and width of the images.
        policies: every kind's policy.

    Raises:
        DataError: a record's class is none of the listing's.
    """
    classes = listing.classes or _class_order(listing)
    label_of = {class_name: label for label, class_name in enumerate(classes)}
    labels = {}
    for domain, records in listing.domains.items():
        for record in records:
            if record.class_name not in label_of:
                raise DataError(
                    f"{name}: {domain}: {record.name} is of class {record.class_name!r}, which is "
                    f"none of {', '.join(classes)}"
                )
        labels[domain] = np.array([label_of[record.class_name] for record in records], np.int64)
    return Job(name, size, classes, listing.domains, labels, policies, listing.findings)


def _class_order(listing: Listing) -> tuple[str, ...]:
    """Return the class names found, in numeric order if all are whole numbers, else sorted."""
    names = {record.class_name for records in listing.domains.values() for record in records}
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def take_survey(job: Job, chunks: Mapping[str, Sequence[Chunk]]) -> Survey:
    """Gather what was found, and judge what only shows when all images are known.

    Args:
        job: what is to be prepared.
        chunks: by domain, all of them decoded.
    """
    findings = Findings()
    findings.merge(job.listed)
    for of_domain in chunks.values():
        for chunk in of_domain:
            findings.merge(staging.read_findings(chunk))
    rows = {domain: rows_of(of_domain) for domain, of_domain in chunks.items()}
    keep = keep_rows(rows, job.policies, findings)
    for name, found in rows.items():
        keep[name] &= _in_split(found, keep[name], job.policies, findings)
    counts = [count_rows(domain, rows[domain], keep[domain], job.classes) for domain in rows]
    for domain in counts:
        if not domain.images:
            findings.add("empty_domain", domain.name)
            continue
        for class_name, images in domain.classes.items():
            if not images:
                findings.add("missing_class", class_name, f"in {domain.name}")
    return Survey(findings, keep, tuple(domain for domain in counts if domain.images))


def _in_split(
    rows: Rows, keep: NDArray[np.bool_], policies: Mapping[str, Policy], findings: Findings
) -> NDArray[np.bool_]:
    """Note a domain's images without a split where the domain has an official one.

    Args:
        rows: of the domain.
        keep: bool [N], which rows stay so far; others do not count.
        policies: every kind's policy.
        findings: where findings go.

    Returns:
        bool [N], False where the policy leaves an image out.
    """
    stays = np.ones(len(keep), np.bool_)
    if not has_official({split for split, kept in zip(rows.splits, keep, strict=True) if kept}):
        return stays
    for row in np.flatnonzero(keep):
        if not rows.splits[row]:
            findings.add("no_split", rows.names[row])
            stays[row] = policies["no_split"] != "skip"
    return stays


def report(job: Job, survey: Survey) -> dict[str, Any]:
    """Return the counts and findings that stand beside the prepared data."""
    return {
        "format": FORMAT,
        "name": job.name,
        "size": job.size,
        "classes": list(job.classes),
        "domains": [domain.model_dump(mode="json") for domain in survey.counts],
        "findings": survey.findings.as_json(job.policies),
    }


def complaints(job: Job, survey: Survey) -> list[str]:
    """Return a line for everything that stands against going on; none if all is well."""
    lines = []
    for kind in survey.findings.errors(job.policies):
        count, known = survey.findings.counts[kind], KINDS[kind]
        names = first_names(survey.findings.names[kind], count)
        ways = " or ".join(policy_option(kind, way) for way in known.allowed if way != "error")
        lines.append(f"{count:,} {known.meaning}: {names}; to let it pass: {ways}")
    return lines if lines or survey.counts else ["no image is left"]
