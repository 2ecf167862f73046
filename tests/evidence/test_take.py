"""The evidence of one model is one labelled dataset, which tests read as they read the open model."""

import numpy as np

import diffscope
from diffscope.evidence.take import LAST_QUERY, OpenModels
from diffscope.hypotheses import Models, Settings
from diffscope.stats.ragged import stack_layers


def test_a_dataset_of_a_model_is_read_as_the_open_model():
    scope = diffscope.load("mini-diff")
    settings = Settings(prompts=3, length=96, needles=3, untrained=2, weights="answer")
    opened = Models.open([scope], settings)
    model = OpenModels([scope], lambda: opened.prompts, untrained=2, seed=settings.seed)
    evidence = model.take(LAST_QUERY, 0)
    evidence = evidence.assign(model.take_untrained(LAST_QUERY, 0).data_vars)
    for part in ("previous", "blind"):
        evidence = evidence.assign(model.take(part, 0).data_vars)
    evidence = evidence.assign(model.take_untrained("previous", 0).data_vars)
    assert evidence["shared_noise.sharing"].dims == ("prompt", "layer", "head") and evidence["blind_A1"].dims == ("few",)
    assert evidence["untrained.previous.a2"].dims == ("untrained", "fewer", "layer", "head")
    read = Models([evidence], ["mini-diff"], weights="answer")
    assert read.differential and read.prompt_keys == opened.prompt_keys and read.extras == opened.extras
    for label, name in (("shared_noise", "sharing"), ("previous", "a2")):
        for mine, theirs in zip(read.tables(label), opened.tables(label), strict=True):
            assert [len(mine)] == [len(theirs)]
            for one, other in zip(mine, theirs):
                np.testing.assert_array_equal(one.mean(name), other.mean(name))
    (mine,), (theirs,) = (models.outcomes("blind_A1", "zero_a3").values() for models in (read, opened))
    np.testing.assert_array_equal(mine.values, theirs.values)
    assert read.outcomes("zero") == {} and opened.outcomes("zero")["zero"].values.shape == (1, 3)


def test_layers_of_several_head_counts_are_stacked_with_nan_for_what_they_lack():
    one, two = np.ones((3, 1, 2)), np.full((3, 2, 2), 2)
    stacked = stack_layers([one, two], axis=1)
    assert stacked.shape == (3, 2, 2, 2) and np.isnan(stacked[:, 0, 1]).all()
    assert (stacked[:, 0, 0] == 1).all() and (stacked[:, 1] == 2).all()
