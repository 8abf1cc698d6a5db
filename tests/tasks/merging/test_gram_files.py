"""Files of Gram matrices: they are of one network, found again whatever the order of files."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.errors import CheckpointError, UsageError
from roundweave.tasks.merging.gram_files import network_digest, read_grams, write_grams


@pytest.fixture
def files(tmp_path) -> tuple[list[str], list[str]]:
    """Two files of Gram matrices, and the digests of the networks that they are of."""
    places, digests = [str(tmp_path / f"{i}.safetensors") for i in range(2)], []
    for i, place in enumerate(places):
        digests.append(network_digest({"w": torch.full((2, 3), float(i))}))
        write_grams(place, {"w": torch.eye(3)[None] * (i + 1)}, digests[-1])
    return places, digests


def test_files_are_found_by_their_network_in_any_order(files) -> None:
    places, digests = files
    for given in (places, places[::-1]):
        found = read_grams(given, digests)
        assert [grams["w"][0, 0, 0].item() for grams in found] == [1.0, 2.0]


def test_a_file_of_another_network_is_refused(files) -> None:
    places, digests = files
    other = network_digest({"w": torch.full((2, 3), 5.0)})
    with pytest.raises(UsageError, match=r"1\.safetensors has no Gram matrices of these networks"):
        read_grams(places, [digests[0], other])
    with pytest.raises(UsageError, match="no file has the Gram matrices of network 1"):
        read_grams([places[0], places[0]], digests)


def test_one_file_serves_a_network_that_is_merged_with_itself(files) -> None:
    places, digests = files
    assert len(read_grams([places[0], places[0]], [digests[0]] * 2)) == 2


def test_a_checkpoint_and_a_broken_file_are_no_gram_files(files, tmp_path) -> None:
    places, digests = files
    plain = str(tmp_path / "plain.safetensors")
    write_checkpoint(plain, {"w": torch.eye(3)})
    with pytest.raises(UsageError, match=r"plain\.safetensors has no Gram matrices of these networks"):
        read_grams([plain, places[1]], digests)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes((tmp_path / "0.safetensors").read_bytes()[:40])
    with pytest.raises(CheckpointError, match="truncated, corrupt or no checkpoint"):
        read_grams([str(broken), places[1]], digests)


def test_a_network_without_layers_has_no_file(tmp_path) -> None:
    with pytest.raises(UsageError, match="no linear or convolutional layer"):
        write_grams(str(tmp_path / "none.safetensors"), {}, "")


def test_a_digest_is_of_the_values() -> None:
    state = {"a": torch.zeros(2), "b": torch.ones(3)}
    assert network_digest(state) == network_digest(dict(reversed(state.items())))
    assert network_digest(state) != network_digest(state | {"a": torch.tensor([0.0, 1e-30])})
