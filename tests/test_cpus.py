import os

import pytest

from raysim.cpus import usable_cpus


def test_usable_cpus_are_those_of_the_process() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)


def test_systems_without_affinity_have_their_cpus_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cpus() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus() == 1
