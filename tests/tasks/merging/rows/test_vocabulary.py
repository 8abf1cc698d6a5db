"""Rows of embeddings are put in the order of one tokenizer, and a row of the mean is that of who has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import roundweave as rw
from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.rows.vocabulary import find_vocabulary
from roundweave.tasks.networks.pretrained import inputs_by_kind
from tests.flows.merging.tiny_folders import Folder, folder, made, quiet, transformers

__all__ = ["folder", "quiet"]
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


@pytest.fixture
def pair(folder: Folder) -> tuple[str, str]:
    """Folders of networks with 4 and 5 tokens, of which three are the same."""
    few = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    return (
        tokenized(folder("one", "llama", vocab_size=len(ONE), **few), ONE),
        tokenized(folder("other", "llama", seed=1, vocab_size=len(OTHER), **few), OTHER),
    )


@pytest.mark.parametrize("choice", ["union", "first"])
def test_a_row_of_a_token_is_the_mean_of_those_who_have_it(pair, tmp_path, choice) -> None:
    out = str(tmp_path / "out")
    given = {"match": "none", "vocabulary": choice, "coefficients": (1, 3), "executor": "inline"}
    rw.merge(rw.MergeConfig(networks=(pair[0], pair[0]), out=str(tmp_path / "same"), **given))
    rw.merge(rw.MergeConfig(networks=pair, out=out, **given))
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
    words, few, pair = (
        ["[UNK]", "cat", "dog", "owl"],
        {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None},
        [],
    )
    whole = made("llama", vocab_size=len(words), **few)
    units = find_units(whole, inputs_by_kind(whole))
    permuted = units.permute(whole.state_dict(), units.random(torch.Generator().manual_seed(1)))
    for name, state, rows in (("one", whole.state_dict(), [0, 1, 2]), ("other", permuted, [3, 0, 2])):
        part = made("llama", vocab_size=len(rows), **few)
        part.load_state_dict({n: t[rows] if len(t) == len(words) else t for n, t in state.items()})
        pair.append(tokenized(folder(name, part), [words[row] for row in rows]))
    given = {"match": "weights", "vocabulary": "union", "executor": "inline", "out": str(tmp_path / "out")}
    rw.merge(rw.MergeConfig(networks=tuple(pair), **given))
    merged = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()["owl"] == words.index("owl")
    with torch.no_grad():
        found, wanted = (network.eval()(torch.tensor([[0, 1, 2, 3]])).logits for network in (merged, whole))
    assert (found - wanted).abs().max() <= 1e-5 * wanted.std()


def test_other_tokens_are_refused_without_a_choice(pair, folder, tmp_path) -> None:
    same_size = tokenized(
        folder("third", "llama", seed=2, vocab_size=4, pad_token_id=None), ["[UNK]", "dog", "cat", "owl"]
    )
    given = {"executor": "inline", "match": "none", "out": str(tmp_path / "out")}
    for other in (pair[1], same_size):
        with pytest.raises(UsageError, match="number other tokens; give --vocabulary union, or first"):
            rw.merge(rw.MergeConfig(networks=(pair[0], other), **given))
    with pytest.raises(UsageError, match="files that name all tokens and labels; give --out FOLDER"):
        rw.merge(
            rw.MergeConfig(networks=pair, vocabulary="union", **given | {"out": str(tmp_path / "a.safetensors")})
        )
    with pytest.raises(UsageError, match="vocabulary is for folders"):
        rw.merge(rw.MergeConfig(networks=(f"{pair[0]}/model.safetensors", pair[1]), vocabulary="first", **given))


def test_rows_without_a_token_stay_those_of_the_first(tmp_path) -> None:
    places = [Path(tokenized(str(tmp_path / name), words)) for name, words in (("a", ONE), ("b", OTHER))]
    found = find_vocabulary(places, [6, 5], "first")
    assert found is not None
    assert [rows.tolist() for rows in found.rows] == [[0, 1, 2, 3, 4, 5], [0, 2, -1, 1, -1, -1]]


def test_tokens_of_the_base_are_merged_as_task_vectors(folder, tmp_path) -> None:
    """The base has one token that only the first network knows, and one network has tokens of its own."""
    few = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    named = {"base": ["[UNK]", "dog", "cat"], "one": ["[UNK]", "cat", "dog", "owl"], "other": ["[UNK]", "cat"]}
    places = {
        name: tokenized(folder(name, "llama", seed=seed, vocab_size=len(words), **few), words)
        for seed, (name, words) in enumerate(named.items())
    }
    out = str(tmp_path / "out")
    given = {"base": places["base"], "executor": "inline", "match": "none", "out": out}
    pair = places["one"], places["other"]
    rw.merge(rw.MergeConfig(networks=pair, average="task_arithmetic", vocabulary="base", **given))
    assert transformers.AutoTokenizer.from_pretrained(out).get_vocab() == {"[UNK]": 0, "dog": 1, "cat": 2}
    one, other, base, merged = (
        transformers.LlamaForCausalLM.from_pretrained(place).model.embed_tokens.weight
        for place in (*pair, places["base"], out)
    )
    torch.testing.assert_close(merged[2], base[2] + (one[1] - base[2]) + (other[1] - base[2]))
    torch.testing.assert_close(merged[1], one[2])  # the other has no such token, and so no change of it
    with pytest.raises(UsageError, match="give --base FOLDER"):
        rw.merge(rw.MergeConfig(networks=pair, vocabulary="base", executor="inline", match="none", out=f"{out}2"))
