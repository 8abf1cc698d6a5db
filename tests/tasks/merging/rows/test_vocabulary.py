"""Rows of embeddings are put in the order of one tokenizer, and a row of the mean is that of who has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.rows.vocabulary import find_vocabulary
from roundweave.tasks.networks.pretrained import inputs_by_kind
from tests.flows.merging.tiny_folders import Folder, folder, made, merge, quiet, transformers

__all__ = ["folder", "quiet"]
pytestmark = pytest.mark.usefixtures("without_prefect")
ONE, OTHER = ["[UNK]", "cat", "dog", "owl"], ["[UNK]", "owl", "cat", "emu", "elk"]


def tokenized(place: str, words: list[str]) -> str:
    """A folder with a tokenizer of whole words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(place)
    return place


def llama(folder: Folder, name: str, words: list[str], seed: int = 0, state: dict | None = None) -> str:
    """The folder of a network that has a token for each word."""
    network = made("llama", seed, vocab_size=len(words), bos_token_id=0, eos_token_id=0, pad_token_id=None)
    network.load_state_dict(state or network.state_dict())
    return tokenized(folder(name, network), words)


@pytest.fixture
def pair(folder: Folder) -> tuple[str, str]:
    """Folders of networks with 4 and 5 tokens, of which three are the same."""
    return llama(folder, "one", ONE), llama(folder, "other", OTHER, 1)


@pytest.mark.parametrize("choice", ["union", "first"])
def test_a_row_of_a_token_is_the_mean_of_those_who_have_it(pair, tmp_path, choice) -> None:
    out = str(tmp_path / "out")
    given = {"match": "none", "vocabulary": choice, "coefficients": (1, 3)}
    merge(pair[0], pair[0], out=str(tmp_path / "same"), **given)
    merge(*pair, out=out, **given)
    merged = transformers.LlamaForCausalLM.from_pretrained(out)
    tokens = transformers.AutoTokenizer.from_pretrained(out).get_vocab()
    assert set(tokens) == (set(ONE) | set(OTHER) if choice == "union" else set(ONE))
    assert {token: number for token, number in tokens.items() if token in ONE} == {w: n for n, w in enumerate(ONE)}
    one, other = (transformers.LlamaForCausalLM.from_pretrained(place) for place in pair)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        a, b, rows = (network.state_dict()[name] for network in (one, other, merged))
        assert len(rows) == len(tokens)
        for token, number in tokens.items():
            mine, theirs = (words.index(token) if token in words else None for words in (ONE, OTHER))
            both = [(a, mine, 1), (b, theirs, 3)]
            having = [(weight * network[row], weight) for network, row, weight in both if row is not None]
            wanted = sum(row for row, _ in having) / sum(weight for _, weight in having)
            torch.testing.assert_close(rows[number], wanted, rtol=1e-6, atol=1e-7)


def test_a_row_of_one_network_alone_has_its_units_in_the_order_of_all(folder, tmp_path) -> None:
    """Two networks are one whose units were permuted, and each has some of its tokens: the merge has all."""
    pair, opened = [], transformers.LlamaForCausalLM.from_pretrained
    whole = opened(llama(folder, "whole", ONE))
    units = find_units(whole, inputs_by_kind(whole))
    permuted = units.permute(whole.state_dict(), units.random(torch.Generator().manual_seed(1)))
    for name, state, rows in (("one", whole.state_dict(), [0, 1, 2]), ("other", permuted, [3, 0, 2])):
        part = {n: t[rows] if len(t) == len(ONE) else t for n, t in state.items()}
        pair.append(llama(folder, name, [ONE[row] for row in rows], state=part))
    out = str(tmp_path / "out")
    merge(*pair, match="weights", vocabulary="union", out=out)
    assert transformers.AutoTokenizer.from_pretrained(out).get_vocab()["owl"] == ONE.index("owl")
    with torch.no_grad():
        found, wanted = (network.eval()(torch.tensor([[0, 1, 2, 3]])).logits for network in (opened(out), whole))
    assert (found - wanted).abs().max() <= 1e-5 * wanted.std()


def test_other_tokens_are_refused_without_a_choice(pair, folder, tmp_path) -> None:
    same_size = llama(folder, "third", ["[UNK]", "dog", "cat", "owl"], 2)
    out, other = (
        {"match": "none", "out": str(tmp_path / "out")},
        "number other tokens; give --vocabulary union, or",
    )
    union, file = {"vocabulary": "union"}, "files that name all tokens and labels; give --out FOLDER"
    for networks, fields, words in (
        (pair, {}, other),
        ((pair[0], same_size), {}, other),
        (pair, union | {"out": str(tmp_path / "a.safetensors")}, file),
        ((f"{pair[0]}/model.safetensors", pair[1]), union, "vocabulary is for folders"),
        (pair, {"vocabulary": "base"}, "give --base FOLDER"),
    ):
        with pytest.raises(UsageError, match=words):
            merge(*networks, **out | fields)


def test_rows_without_a_token_stay_those_of_the_first(tmp_path) -> None:
    places = [Path(tokenized(str(tmp_path / name), words)) for name, words in (("a", ONE), ("b", OTHER))]
    found = find_vocabulary(places, [{"vocab_size": 6}, {"vocab_size": 5}], "first")
    assert found is not None
    assert [rows.tolist() for rows in found.rows] == [[0, 1, 2, 3, 4, 5], [0, 2, -1, 1, -1, -1]]


def test_tokens_of_the_base_are_merged_as_task_vectors(folder, tmp_path) -> None:
    """The base has one token that only the first network knows, and one network has tokens of its own."""
    named = {"base": ["[UNK]", "dog", "cat"], "one": ["[UNK]", "cat", "dog", "owl"], "other": ["[UNK]", "cat"]}
    places = [llama(folder, name, words, seed) for seed, (name, words) in enumerate(named.items())]
    out = str(tmp_path / "out")
    given = {"average": "task_arithmetic", "vocabulary": "base", "base": places[0], "match": "none"}
    merge(*places[1:], **given, out=out)
    assert transformers.AutoTokenizer.from_pretrained(out).get_vocab() == {"[UNK]": 0, "dog": 1, "cat": 2}
    base, one, other, merged = (
        transformers.LlamaForCausalLM.from_pretrained(place).model.embed_tokens.weight for place in (*places, out)
    )
    torch.testing.assert_close(merged[2], base[2] + (one[1] - base[2]) + (other[1] - base[2]))
    torch.testing.assert_close(merged[1], one[2])  # the other has no such token, and so no change of it
