"""Small tokenizers that treat spaces and digits as those of well-known models do."""

import string
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from diffscope.tasks.text import standard_library_text

KINDS = ("gpt2", "llama3", "qwen", "gemma", "llama2", "metaspace")
# A word with the space before it; digits by threes, or one by one; never with a space before them.
WORDS = r"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BOS = "<s>"
NUMBERS = [f" {n:04d}." for n in range(0, 10_000, 37)] * 5


@cache
def tokenizer(kind, vocabulary=700):
    """A tokenizer of one of the `KINDS`; cities and numbers are of several tokens in all of them."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "gpt2":
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind in ("llama3", "qwen"):
        split = pre_tokenizers.Split(Regex(WORDS.format(digits="{1,3}" if kind == "llama3" else "")), "isolated")
        bpe.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        alphabet = sorted({"▁", *string.ascii_letters}.union(*standard_library_text(True)) - {" "})
        digits = pre_tokenizers.Punctuation() if kind == "metaspace" else pre_tokenizers.Digits(individual_digits=True)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first"), digits])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<unk>", BOS], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([*standard_library_text(True)[:300], *NUMBERS], trainer)
    byte_level = kind in ("gpt2", "llama3", "qwen")
    bpe.decoder = decoders.ByteLevel() if byte_level else decoders.Metaspace(prepend_scheme="first")
    if kind == "gemma":
        bpe.pre_tokenizer = None
        bpe.normalizer = normalizers.Replace(" ", "▁")
        bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    if kind == "llama2":
        bpe.pre_tokenizer = None
        bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if kind == "gpt2":
        bpe.post_processor = processors.ByteLevel(trim_offsets=True)
    elif kind != "qwen":
        bpe.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bpe.token_to_id(BOS))])
    known = {} if kind == "qwen" else {"bos_token": BOS}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False, **known)
