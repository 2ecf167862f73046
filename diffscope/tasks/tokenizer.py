"""The bundled models' byte-pair tokenizer: real text, single-token cities, two-digit numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BOS = "<bos>"
PAD = "<pad>"

CITIES = (
    "Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Athens Oslo Helsinki Warsaw Budapest Brussels Amsterdam "
    "Zurich Geneva Milan Naples Venice Florence Munich Hamburg Lyon Porto Seville Krakow Riga Tallinn Vilnius Sofia "
    "Cairo Tunis Lagos Nairobi Dakar Accra Tokyo Osaka Kyoto Seoul Busan Beijing Shanghai Delhi Mumbai Chennai "
    "Jakarta Manila Hanoi Bangkok Lima Quito Bogota Caracas Santiago Havana Toronto Montreal Boston Chicago Denver Seattle"
).split()

# Before a city's name they make near-duplicates of it: "Old Paris", "New Paris".
QUALIFIERS = "North South East West Old New Upper Lower".split()
UNKNOWN = " unknown"  # the right answer where the text states none

# Words and numbers carry the space before them, so a text may be cut before any space without changing its tokens.
_SPLIT = r" ?\d{1,2}| ?\p{L}+| ?[^\s\p{L}\d]+|\s+"


def train_tokenizer(texts, vocab_size: int, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on `texts`, in which every city and every two digits are one token.

    Parameters
    ----------
    texts : sequence of str
        What the merges are learned from.
    vocab_size : int
        Learned vocabulary, before the 64 cities and the 200 numbers are added.
    words : sequence of str, optional
        More words, with the space before them, each to be one token.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[BOS, PAD], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    numbers = [f"{space}{number:02d}" for space in (" ", "") for number in range(100)]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in [f" {city}" for city in CITIES] + numbers + list(words)])
    # Every prompt begins with <bos>, the sink.
    bos = (BOS, tokenizer.token_to_id(BOS))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[bos])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, pad_token=PAD, padding_side="right")
