"""Rows of embeddings are put in the order of one tokenizer, and a row of the mean is that of who has it."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from roundweave.storage.errors import CheckpointError, ModelError, UsageError
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.rows.vocabulary import find_vocabulary
from roundweave.tasks.networks.pretrained import inputs_by_kind
from tests.flows.merging.tiny_folders import LAYERS, Folder, folder, made, merge, quiet, transformers

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
        "differ in their tokens; give --vocabulary union, or",
    )
    union, file = {"vocabulary": "union"}, "files that name all tokens and labels; give --out FOLDER"
    for networks, fields, words in (
        (pair, {}, other),
        ((pair[0], same_size), {}, other),
        (pair, union | {"out": str(tmp_path / "a.safetensors")}, file),
        ((f"{pair[0]}/model.safetensors", pair[1]), union, "vocabulary needs folders"),
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


ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
VALUES = {
    "BartForConditionalGeneration": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1},
    "MobileBertForMaskedLM": {**LAYERS, "embedding_size": 16, "intra_bottleneck_size": 32},
    "CLIPModel": {"vision_config": {**LAYERS, "image_size": 8, "patch_size": 4}, "projection_dim": 28},
}


@pytest.mark.parametrize("choice", ["union", "first"])
@pytest.mark.parametrize(("kind", "tensors"), [*zip(VALUES, (5, 5, 1), strict=True)])
def test_all_that_has_a_place_for_each_token_is_put_in_order(folder, tmp_path, kind, tensors, choice) -> None:
    """Tokens are rows of most, and columns of BART's `final_logits_bias` and of a part of MobileBERT's head."""
    every, pair, architecture = (ONE, OTHER), [], getattr(transformers, kind)
    for name, words in zip("ab", every, strict=True):
        tokens = {"vocab_size": len(words), **ENDS}
        tokens = {"text_config": {**LAYERS, **tokens}} if kind == "CLIPModel" else tokens
        network = architecture(architecture.config_class(**VALUES[kind], **tokens))
        for tensor in (*network.parameters(), *(b for b in network.buffers() if b.is_floating_point())):
            tensor.data = torch.randn_like(tensor)
        pair.append((tokenized(folder(name, network), words), network.state_dict()))
    out = str(tmp_path / "out")
    merge(*(place for place, _ in pair), match="none", vocabulary=choice, out=out)
    merged = architecture.from_pretrained(out).state_dict()
    numbers, found = transformers.AutoTokenizer.from_pretrained(out).get_vocab(), 0
    for name, tensor in merged.items():
        own = [state[name] for _, state in pair]
        axes = [axis for axis, size in enumerate(own[0].shape) if size != own[1].shape[axis]]
        found += len(axes)
        for axis, (token, number) in product(axes, numbers.items()):
            known = [
                one.select(axis, words.index(token))
                for one, words in zip(own, every, strict=True)
                if token in words
            ]
            torch.testing.assert_close(tensor.select(axis, number), sum(known) / len(known))
    assert found == tensors


def test_added_tokens_of_a_tokenizer_of_several_files_have_numbers_too(folder, tmp_path) -> None:
    places, states = [], []
    for seed, added in enumerate((["<ask>", "<tell>"], ["<tell>", "<ask>"])):
        network = made("bert", seed, vocab_size=7)
        place = Path(folder(str(seed), network))
        (place / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
        (place / "added_tokens.json").write_text(json.dumps({token: 5 + n for n, token in enumerate(added)}))
        (place / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
        places.append(str(place))
        states.append(network.bert.embeddings.word_embeddings.weight)
    out = str(tmp_path / "out")
    with pytest.raises(UsageError, match="differ in their tokens"):
        merge(*places, match="none", out=out)
    merge(*places, match="none", vocabulary="union", out=out)
    rows = transformers.BertModel.from_pretrained(out).embeddings.word_embeddings.weight
    torch.testing.assert_close(rows, (states[0] + states[1][[0, 1, 2, 3, 4, 6, 5]]) / 2)


def test_a_union_builds_pieces_of_words_and_keeps_what_added_tokens_are(folder, tmp_path) -> None:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    def pieces(name: str, parts: list[str], merges: list[tuple[str, str]], split: str = "ByteLevel") -> str:
        tokenizer = Tokenizer(models.BPE({part: number for number, part in enumerate(parts)}, merges))
        tokenizer.pre_tokenizer = getattr(pre_tokenizers, split)()
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        fast.add_tokens([AddedToken(f"<{name}>", special=True)])
        place = folder(name, "llama", vocab_size=len(parts) + 1)
        fast.save_pretrained(place)
        return place

    one = pieces("one", [*"Ġacost", "at", "cat"], [("a", "t"), ("c", "at")])
    other = pieces("other", [*"Ġcosta", "os", "cos"], [("o", "s"), ("c", "os")])
    merge(one, other, match="none", vocabulary="union", out=str(tmp_path / "out"))
    union = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert union.get_vocab().items() >= transformers.AutoTokenizer.from_pretrained(one).get_vocab().items()
    assert union.tokenize("cat costs<other>") == ["Ġ", "cat", "Ġ", "cos", "t", "s", "<other>"]
    assert "<other>" not in union.decode(union("cat<other>").input_ids, skip_special_tokens=True)
    third = pieces("third", [*"Ġcosta", "ta"], [("t", "a")], split="Metaspace")
    with pytest.raises(CheckpointError, match="split texts differently, so pieces have no union; give --voc"):
        merge(one, third, match="none", vocabulary="union", out=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"hidden_size": 4, "num_attention_heads": 1}, "is as large as there are tokens, 4, and nobody knows"),
        ({"entity_vocab_size": 9}, "has vocab_size = 4, entity_vocab_size = 9, and only networks of one"),
    ],
)
def test_a_size_that_is_not_understood_is_refused(folder, tmp_path, more, words) -> None:
    pair = [tokenized(folder(str(len(w)), "bert", vocab_size=4, **more), w[:4]) for w in (ONE, OTHER)]
    with pytest.raises((CheckpointError, ModelError), match=words):
        merge(*pair, match="none", vocabulary="first", out=str(tmp_path / "out"))
