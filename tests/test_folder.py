"""Run directories."""

import re
from pathlib import Path

import pytest

from raysim.errors import ConfigError
from raysim.folder import prepare_folder, write_config
from tests.toy import dealt, toy_config


@pytest.mark.parametrize(
    ("name", "shown"), [("digits_mini", "digits_mini"), ("../a b/c", ".._a_b_c")]
)
def test_a_run_directory_lies_in_the_output_folder_whatever_the_data_is_called(
    tmp_path: Path, name: str, shown: str
) -> None:
    config = toy_config(output__dir=str(tmp_path / "runs"))
    dataset, partition = dealt(config)
    named = config.model_copy(update={"data": config.data.model_copy(update={"name": name})})
    folder = prepare_folder(named, dataset, partition)
    assert folder.parent == tmp_path / "runs"
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-fedavg-{re.escape(shown)}-s0", folder.name)
    assert (folder / "partition.csv").is_file()


def test_a_config_that_cannot_be_written_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none/config\.yaml cannot be written: No such file"):
        write_config(toy_config(), tmp_path / "none")
