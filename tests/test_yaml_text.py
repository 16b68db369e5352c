from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from raysim import yaml_text
from raysim.errors import ConfigError
from raysim.yaml_text import parse_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    SCALARS, lambda tree: st.lists(tree, max_size=4) | st.dictionaries(st.text(), tree, max_size=4)
)


@given(TREES)
def test_the_loaders_in_c_and_in_python_read_alike(tree: Any) -> None:
    for flow in (True, False):
        text = yaml.safe_dump(tree, allow_unicode=True, default_flow_style=flow)
        assert parse_yaml(text, "") == yaml.load(text, Loader=yaml_text._Loader)


def test_exponents_are_numbers_and_words_are_words() -> None:
    text = "a: 1e-5\nb: off\nc: no\nd: True\ne: +2E3\nf: .5e1"
    assert parse_yaml(text, "") == {"a": 1e-5, "b": "off", "c": "no", "d": True, "e": 2e3, "f": 5.0}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1", "    a: [1\n       ^"),
        ("b: 1\nb: 2", "the key 'b' stands twice\n"),
        ("\tc", "'\\t'"),
    ],
)
def test_what_is_wrong_is_shown_where_it_stands(text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=r"^file\.yaml: not valid YAML: ") as caught:
        parse_yaml(text, "file.yaml")
    assert place in str(caught.value)
    assert "^" in str(caught.value)
