"""Every registered method, and one of a third party, held to the contract."""

from typing import Any

import pytest

from methods import METHODS
from raysim.method import Method
from tests.methods.contract import MethodContract
from tests.toy import FEDFIP, PrivateHead, toy_config

# A mask is formed in the first round and then stands, so that updates keep their shapes.
SETTINGS: dict[str, dict[str, Any]] = {"fedfip": FEDFIP | {"mask_every": 100}}


class TestRegistered(MethodContract):
    @pytest.fixture(params=sorted(METHODS))
    def method(self, request: pytest.FixtureRequest) -> Method:
        settings = SETTINGS.get(request.param, {"name": request.param})
        method = toy_config(method=settings).method
        assert isinstance(method, Method)
        return method


class TestThirdParty(MethodContract):
    @pytest.fixture
    def method(self) -> Method:
        return PrivateHead()


def test_names_and_table_agree() -> None:
    for name, method in METHODS.items():
        assert method.model_fields["name"].default == name
        assert method.title
        assert method.__module__ == f"methods.{name}"
