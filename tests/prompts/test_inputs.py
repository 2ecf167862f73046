"""However people hold a prompt, it is the same capture; what may be meant in two ways is refused in one line."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BatchEncoding, PreTrainedTokenizerFast

import diffscope
from diffscope import Capture, DiffscopeError, PromptError, SpanError, SpanExpr, edits, tasks
from diffscope.prompts.encoded import encode
from tests import encoder_decoders, tiny

TEXT = "The magic number: Paris 7421. The magic number: Rome 2174. The magic number: Paris"
SHORT = "The magic number: Rome 2174."
CHAT = [{"role": "user", "content": "The number of Paris?"}, {"role": "assistant", "content": "7421"}]
QUESTION = CHAT[:1]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
PARTS = TEMPLATE.replace("{{ message['content'] }}", "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}")
NO_TWO = "{{ raise_exception('roles must alternate') }}"


@pytest.fixture(scope="module")
def scope(mini_diff):
    return mini_diff


@pytest.fixture(scope="module")
def reference(scope):
    return scope.capture(TEXT, spans={"answer": "7421"})


@pytest.fixture(scope="module")
def references(scope):
    return scope.capture([SHORT, TEXT])


def with_template(scope, template):
    tokenizer = copy.deepcopy(scope.tokenizer)
    tokenizer.chat_template = template
    return diffscope.load(scope.model, tokenizer)


def same(capture, reference):
    """Whether two captures are of the same tokens, text and tensors."""
    tokens = [(prompt.text, prompt.ids, prompt.tokens, prompt.offsets, prompt.spans) for prompt in capture.prompts]
    assert tokens == [(prompt.text, prompt.ids, prompt.tokens, prompt.offsets, prompt.spans) for prompt in reference.prompts]
    assert type(capture) is type(reference) and capture.next == reference.next
    for layer, other in zip(capture.layers, reference.layers, strict=True):
        assert all(torch.equal(getattr(layer, name), getattr(other, name)) for name in ("q", "k", "v", "lam"))
    return True


def ids_of(scope):
    return scope.tokenizer(TEXT)["input_ids"]


ONE = {
    "list": lambda scope: ids_of(scope),
    "tuple": lambda scope: tuple(ids_of(scope)),
    "tensor": lambda scope: torch.tensor(ids_of(scope)),
    "tensor int32": lambda scope: torch.tensor(ids_of(scope), dtype=torch.int32),
    "array": lambda scope: np.array(ids_of(scope)),
    "array uint16": lambda scope: np.array(ids_of(scope), dtype=np.uint16),
    "array of objects": lambda scope: np.array(ids_of(scope), dtype=object),
    "list of numpy's numbers": lambda scope: list(np.array(ids_of(scope))),
    "list of tensors without dimensions": lambda scope: list(torch.tensor(ids_of(scope))),
    "series": lambda scope: pd.Series(ids_of(scope)),
    "numpy's text": lambda scope: np.str_(TEXT),
    "tokenizer's output": lambda scope: scope.tokenizer(TEXT),
    "with all fields": lambda scope: scope.tokenizer(
        TEXT, return_special_tokens_mask=True, return_offsets_mapping=True, return_token_type_ids=True, return_length=True
    ),
    "padded dict": lambda scope: {"input_ids": [1, 1, *ids_of(scope), 1], "attention_mask": [0, 0, *[1] * len(ids_of(scope)), 0]},
    "mask of bools": lambda scope: {
        "input_ids": torch.tensor([1, *ids_of(scope)]),
        "attention_mask": torch.tensor([False] + [True] * len(ids_of(scope))),
    },
    "with positions": lambda scope: {
        "input_ids": [1, *ids_of(scope)],
        "attention_mask": [0] + [1] * len(ids_of(scope)),
        "position_ids": [0, *range(len(ids_of(scope)))],
    },
}


@pytest.mark.parametrize("form", ONE)
def test_one_prompt_is_the_same_capture_in_every_form(scope, reference, form):
    assert same(scope.capture(ONE[form](scope), spans={"answer": "7421"}), reference)


BATCH = {
    "token lists": lambda tokenizer: tokenizer([SHORT, TEXT])["input_ids"],
    "tuple of texts": lambda tokenizer: (SHORT, TEXT),
    "array of texts": lambda tokenizer: np.array([SHORT, TEXT]),
    "series of texts": lambda tokenizer: pd.Series([SHORT, TEXT]),
    "tensors": lambda tokenizer: [torch.tensor(row) for row in tokenizer([SHORT, TEXT])["input_ids"]],
    "arrays and lists": lambda tokenizer: [np.array(tokenizer(SHORT)["input_ids"]), tokenizer(TEXT)["input_ids"]],
    "tokenizer's outputs": lambda tokenizer: [tokenizer(SHORT), tokenizer(TEXT)],
    "tokenizer's output, not padded": lambda tokenizer: tokenizer([SHORT, TEXT]),
    "padded, lists": lambda tokenizer: tokenizer([SHORT, TEXT], padding=True),
    "padded, torch": lambda tokenizer: tokenizer([SHORT, TEXT], padding=True, return_tensors="pt"),
    "padded, numpy": lambda tokenizer: tokenizer([SHORT, TEXT], padding=True, return_tensors="np"),
    "padded further": lambda tokenizer: tokenizer([SHORT, TEXT], padding="max_length", max_length=50, return_tensors="pt"),
    "padded, a plain dict": lambda tokenizer: dict(tokenizer([SHORT, TEXT], padding=True, return_tensors="pt")),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("form", BATCH)
def test_a_batch_is_the_same_capture_in_every_form(scope, references, form, side):
    tokenizer = copy.deepcopy(scope.tokenizer)
    tokenizer.padding_side = side
    assert same(scope.capture(BATCH[form](tokenizer)), references)


def test_dimensions_tell_one_prompt_from_a_batch_of_one(scope, reference):
    for batch in (
        torch.tensor([ids_of(scope)]),
        np.array([ids_of(scope)], dtype=np.int16),
        [ids_of(scope)],
        [TEXT],
        scope.tokenizer(TEXT, return_tensors="pt"),
        [QUESTION],
    ):
        opened = with_template(scope, TEMPLATE)
        assert isinstance(opened.capture(batch), Capture)
        assert isinstance(opened.capture(batch[0] if not isinstance(batch, BatchEncoding) else TEXT), Capture)
    assert same(scope.capture(scope.tokenizer(TEXT, return_tensors="pt"), spans={"answer": "7421"})[0], reference)


def test_everything_that_takes_a_prompt_takes_every_form(scope):
    padded = scope.tokenizer([SHORT, TEXT], padding=True, return_tensors="pt")
    array = np.array(ids_of(scope))
    assert scope.encode(array) == scope.encode(TEXT) and scope.tokenize(array) == ids_of(scope)
    assert scope.generate(array, 2) == scope.generate(TEXT, 2)
    assert scope.generate(padded, 2) == [scope.generate(SHORT, 2), scope.generate(TEXT, 2)]
    assert scope.loss(padded) == scope.loss([SHORT, TEXT]) and scope.loss(array) == scope.loss(TEXT)
    assert scope.measure(padded, ["gini"]).identical(scope.measure([SHORT, TEXT], ["gini"]))
    both = diffscope.compare(scope, scope, padded)
    assert [prompt.text for prompt in both.captures[1].prompts] == [SHORT, TEXT]
    with scope.edit(edits.positional_a2(scope.capture([SHORT, TEXT]))):
        expected = scope.loss(SHORT)
    with scope.edit(edits.positional_a2(scope.capture(padded))):
        assert scope.loss(SHORT) == expected
    with pytest.raises(PromptError, match="one prompt is needed here, and this is a batch of 2"):
        scope.encode(padded)


# chats


def test_a_chat_is_what_its_template_writes(scope):
    opened = with_template(scope, TEMPLATE)
    tokenizer = opened.tokenizer
    for chat, answer_next in ((QUESTION, True), (CHAT, False)):
        capture = opened.capture(chat, spans={"asked": "Paris"})
        written = tokenizer.apply_chat_template(chat, add_generation_prompt=answer_next)["input_ids"]
        assert capture.ids == written and written.count(tokenizer.bos_token_id) == 1
        assert capture.prompts[0].text == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer_next)
        assert [capture.tokens[at] for at in capture.spans["asked"]] == [" Paris"] and capture.spans["sink"] == [0]
        assert opened.encode(written, {"asked": "Paris"}).spans == capture.prompts[0].spans
        assert same(opened.capture(tuple(chat), spans={"asked": "Paris"}), capture)
    batch = opened.capture([QUESTION, CHAT])
    assert [prompt.ids for prompt in batch.prompts] == [opened.encode(QUESTION).ids, opened.encode(CHAT).ids]


def test_content_in_parts_is_for_templates_that_take_them(scope):
    parts = [{"role": "user", "content": [{"type": "text", "text": "The number"}, {"type": "text", "text": " of Paris?"}]}]
    assert with_template(scope, PARTS).encode(parts) == with_template(scope, TEMPLATE).encode(QUESTION)
    for unaware in (TEMPLATE, "{% for message in messages %}{% if message['content'] is string %}x{% endif %}{% endfor %}"):
        with pytest.raises(PromptError, match="takes no content in parts"):
            with_template(scope, unaware).encode(parts)


# prompts of tasks


def test_a_prompt_of_a_task_brings_its_spans_along(scope):
    first, second = tasks.examples()[:2]
    by_hand = scope.capture([first.text, second.text], spans=[first.spans, second.spans])
    assert same(scope.capture([first, second]), by_hand)
    assert same(scope.capture(first), scope.capture(first.text, spans=first.spans))
    assert same(scope.capture((first, second.text), spans=[None, second.spans]), by_hand)
    in_tokens = tasks.encode_prompts(scope.tokenizer, [first])[0]
    assert scope.capture(replace(in_tokens, spans={"answer": []})).spans == {"sink": [0]}
    assert scope.encode(in_tokens).span_positions()["answer"] == in_tokens.spans["answer"]
    added = scope.encode(first, {"ahead": SpanExpr("before(answer)"), "needles": [3]}).spans
    assert added["needles"] == (3,) and added["ahead"] == tuple(range(by_hand[0].spans["answer"][0]))
    with pytest.raises(PromptError, match="2 prompts but 1 sets of spans"):
        scope.capture([first, second], spans=[{}])
    with pytest.raises(SpanError, match="spans are given by name"):
        scope.capture(first, spans="7421")


def test_a_model_of_two_sides_refuses_a_prompt_whose_spans_are_of_one_text():
    with pytest.raises(PromptError, match="TextPrompt.* is no prompt of"):
        diffscope.load(encoder_decoders.model("t5"), tiny.tokenizer()).capture(tasks.examples()[0])


# spans of token ids


def test_token_ids_have_the_text_of_a_tokenizer_whose_tokens_hide_their_spaces():
    """A token decoded by itself loses the space before it."""
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    words.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    words.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(special_tokens=["<unk>", "<s>"], show_progress=False))
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<unk>")
    by_text = encode(tokenizer, TEXT, {"answer": "7421. The magic"})
    assert encode(tokenizer, by_text.ids, {"answer": "7421. The magic"}) == by_text


def test_token_ids_have_the_characters_that_several_tokens_share(scope):
    by_text = scope.encode("Zürich 雪 7421", {"snow": "雪"})
    assert "\ufffd" in "".join(by_text.tokens) and len(by_text.spans["snow"]) > 1
    assert scope.encode(by_text.ids, {"snow": "雪"}) == by_text


def test_ids_that_no_text_is_tokenised_to_keep_the_texts_of_their_tokens(scope):
    halves = [*scope.tokenize(" Pa"), *scope.tokenizer("ris", add_special_tokens=False)["input_ids"]]
    assert scope.tokenize(" Paris") != halves
    encoded = scope.encode(halves)
    assert encoded.ids == tuple(halves) and encoded.text == " Paris"


# refusals


def masked(mask, ids=(0, 5, 7)):
    return {"input_ids": list(ids), "attention_mask": mask}


BAD = {
    "fields without a mask that begin with padding": ([{"input_ids": [1, 1, 5]}, {"input_ids": [1, 2, 3]}], "padding"),
    "None": (None, "None is no prompt"),
    "a number": (5, "5 is no prompt"),
    "a float": (1.5, "no prompt"),
    "a bool": (True, "no prompt"),
    "an object": (object(), "no prompt; give a text"),
    "bytes": (b"text", "decode"),
    "a path": (Path("prompt.txt"), "read the text"),
    "a set": ({5, 7}, "no order"),
    "a generator": ((token for token in (5, 7)), "give a list"),
    "an empty text": ("", "empty"),
    "white space": (" \n", "empty"),
    "half a character": ("a \ud83d", "half a character, '\\ud83d', at 2"),
    "an empty list": ([], "empty"),
    "an empty tensor": (torch.tensor([], dtype=torch.int64), "empty"),
    "an empty batch": (torch.zeros(2, 0, dtype=torch.int64), "prompt 0 of the batch: the prompt is empty"),
    "an empty text in a batch": (["a", ""], "empty"),
    "floats": ([1.0, 2.0], "1.0 is no whole number"),
    "NaN": ([float("nan")], "nan is no whole number"),
    "a tensor of floats": (torch.tensor([5.0, 7.0]), "float32 is no type of whole numbers"),
    "an array of floats": (np.array([5.0, np.nan]), "float64 is no type of whole numbers"),
    "a masked array": (np.ma.array([5, 7], mask=[0, 1]), "None is no whole number"),
    "bools": ([True, False], "True is no whole number"),
    "a tensor of bools": (torch.tensor([True, False]), "bool is no type"),
    "a number without dimensions": (torch.tensor(5), r"not ()"),
    "three dimensions": (torch.ones(3, 1, 1, dtype=torch.int64), "not (3, 1, 1)"),
    "three dimensions of numpy": (np.ones((3, 1, 1), dtype=int), "not (3, 1, 1)"),
    "no values": (torch.ones(3, dtype=torch.int64, device="meta"), "without values"),
    "an id beyond the vocabulary": ([5, 1_000_000], "token id 1000000 is outside the model's vocabulary"),
    "a negative id": ([5, -100], "token id -100 is outside"),
    "a huge id": ([5, 2**70], "outside"),
    "None among ids": ([5, None], "None is no whole number"),
    "a text among ids": ([5, "7"], "'7' is no whole number"),
    "ids among texts": (["5", 7], "prompt 1 of the batch: 7 is no prompt"),
    "texts and token ids": (["a", [5, 7]], "texts and token ids"),
    "ragged": ([[5, 7], [5, [7]]], "prompt 1 of the batch"),
    "a batch in a batch": ([["a"], ["b"]], "prompt 0 of the batch: it is a batch itself"),
    "tensors of a batch of one": ([torch.tensor([[5, 7]])], "it is a batch itself"),
    "a dict": ({}, "a dict with nothing"),
    "a message": ({"role": "user", "content": "hi"}, "a chat as a list of messages"),
    "another dict": ({"text": "hi"}, "a dict with 'text' is no prompt"),
    "an unknown field": ({"input_ids": [5, 7], "labels": [5, 7]}, "'labels'"),
    "segments": ({"input_ids": [5, 7], "token_type_ids": [0, 1]}, "token_type_ids"),
    "other positions": ({"input_ids": [5, 7], "position_ids": [3, 4]}, "position_ids"),
    "texts as ids": ({"input_ids": ["a"]}, "input_ids holds something else"),
    "a mask of another length": (masked([1, 1]), "attention_mask has another shape"),
    "a mask of another dimension": (masked([[1, 1, 1]]), "attention_mask has another shape"),
    "a mask with a hole": (masked([1, 0, 1]), "hides tokens between others"),
    "a mask of zeros": (masked([0, 0, 0]), "0 for all tokens"),
    "a mask of other values": (masked([1, 1, 2]), "other values"),
    "a mask of floats": (masked(torch.tensor([1.0, 1.0, 0.0])), "attention_mask holds something else"),
    "padding without a mask": (torch.tensor([[0, 5, 1], [0, 5, 7]]), "prompt 0 of the batch ends with the tokenizer's padding"),
    "padding on the left": ([[0, 5, 7], [1, 0, 5]], "prompt 1 of the batch begins with"),
    "padding in a dict": ({"input_ids": [[0, 5, 1]]}, "give its attention_mask too"),
    "a chat without a template": (QUESTION, "no chat template"),
    "a message without a role": ([{"content": "hi"}], "message 0 of the chat"),
    "a message without content": ([{"role": "user"}], "content of message 0"),
    "a chat that ends in a text": ([*QUESTION, "hi"], "message 1 of the chat is 'hi'"),
    "an image": ([{"role": "user", "content": [{"type": "image", "url": "a.png"}]}], "a part 'image'"),
    "a bare text as a part": ([{"role": "user", "content": ["hi"]}], "a part 'hi'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_prompt_is_refused_in_one_line(scope, name):
    prompt, words = BAD[name]
    with pytest.raises(PromptError) as refusal:
        scope.capture(prompt)
    assert words in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    "spans, words",
    [
        ("7421", "spans are given by name"),
        (["7421"], "spans are given by name"),
        ({"answer": 5}, "no row of whole numbers"),
        ({"answer": None}, "None is no row"),
        ({"answer": [1.5]}, "1.5 is no whole number"),
        ({"answer": [1, None]}, "None is no whole number"),
        ({"answer": slice("a", "b")}, "slice"),
    ],
)
def test_what_is_no_span_is_refused_in_one_line(scope, spans, words):
    with pytest.raises(SpanError, match=words) as refusal:
        scope.capture(TEXT, spans)
    assert "\n" not in str(refusal.value)


def test_other_refusals_name_what_to_do(scope):
    with pytest.raises(PromptError, match="2 prompts but 3 sets of spans"):
        scope.capture([TEXT, TEXT], [{}, {}, {}])
    with pytest.raises(PromptError, match=r"refuses this chat \(roles must alternate\)") as refusal:
        with_template(scope, NO_TWO).capture(QUESTION)
    assert "\n" not in str(refusal.value)
    bare = diffscope.load(tiny.own("v1"))
    for prompt in (TEXT, QUESTION):
        with pytest.raises(PromptError, match="without a tokenizer"):
            bare.capture(prompt)


def test_a_padding_token_that_also_begins_texts_is_padding_where_rows_differ(scope):
    tokenizer = copy.deepcopy(scope.tokenizer)
    tokenizer.pad_token = tokenizer.bos_token
    opened = diffscope.load(scope.model, tokenizer)
    ids = torch.tensor([[0, 5, 7], [0, 9, 11]])
    assert opened.capture(ids).n_tokens == [3, 3]
    with pytest.raises(DiffscopeError, match="prompt 1 of the batch begins with the tokenizer's padding"):
        opened.capture([[0, 5, 7], [0, 0, 5]])
    mask = torch.ones(2, 3, dtype=torch.int64)
    assert opened.capture({"input_ids": torch.tensor([[0, 5, 7], [0, 0, 5]]), "attention_mask": mask}).n_tokens == [3, 3]
