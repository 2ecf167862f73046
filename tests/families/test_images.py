"""An image is a prompt like any other: its tokens are named, its maps are measured, kept and drawn."""

import json
import sys

import numpy as np
import pytest
import torch

import diffscope
from diffscope import PromptError, SpanError, UnsupportedModel
from diffscope.stats.ranks.exact import DEFINITIONS
from tests.layouts import vision
from tests.tiny import awake

pytestmark = pytest.mark.usefixtures("timm")


def test_tokens_are_named_and_spans_are_ranges():
    capture = diffscope.load(vision.tiny()).capture(vision.image(), spans={"object": slice(6, 8), "row": [1, 2, 3, 4]})
    assert capture.tokens == ["register 0", *(f"{row},{column}" for row in range(4) for column in range(4))]
    assert capture.text is None and capture.ids == list(range(17))
    assert capture.spans["object"] == [6, 7] and capture.spans["row"] == [1, 2, 3, 4] and capture.spans["sink"] == [0]
    assert capture.map("D", 1, 2, queries=[6], keys=slice(0, 2)).key_token.values.tolist() == ["register 0", "0,0"]
    model = vision.tiny(class_token=True, reg_tokens=2, global_pool="token", no_embed_class=False)
    assert diffscope.load(model).capture(vision.image()).tokens[:4] == ["class", "register 0", "register 1", "0,0"]


def test_a_batch_is_its_images_one_by_one():
    scope, images = diffscope.load(vision.tiny(parallel=True)), [vision.image(0), vision.image(1)]
    together = scope.capture(torch.stack(images), spans={"object": slice(6, 8)})
    again = scope.capture([image.numpy() for image in images])
    for index, item in enumerate(images):
        alone = scope.capture(item, spans={"object": slice(6, 8)})
        assert np.allclose(together[index].map("D", 1, 2), alone.map("D", 1, 2), atol=1e-6)
        assert np.array_equal(together[index].map("D", 1, 2), again[index].map("D", 1, 2))
        measured = together.measure(["entropy", "cosine"]).isel(prompt=index)
        assert np.allclose(measured["entropy"], alone.measure("entropy")["entropy"], atol=1e-5, equal_nan=True)
        assert [name for name, _ in together.next[index]] == [name for name, _ in alone.next]
    assert scope.capture(images[0][None]).n_tokens == [alone.n_tokens]


def test_next_is_the_classes():
    model, image = vision.tiny(), vision.image()
    with torch.no_grad():
        expected = model(image[None])[0].softmax(-1).topk(10)
    measured = diffscope.load(model).capture(image).next
    assert [int(name) for name, _ in measured] == expected.indices.tolist()
    assert np.allclose([p for _, p in measured], expected.values, atol=1e-6)
    for headless in (vision.tiny(num_classes=0), vision.tiny(global_pool="")):
        assert diffscope.load(headless).capture(image).next == []


def test_any_size_where_the_model_takes_any():
    model = vision.tiny(dynamic_img_size=True, dynamic_img_pad=True)
    capture = diffscope.load(model).capture(vision.image(0, 20, 48))
    assert capture.n_tokens == 1 + 3 * 6 and capture.tokens[-1] == "2,5" and capture.fidelity.decided.all()
    scope = diffscope.load(vision.tiny(dynamic_img_size=True))
    assert scope.capture(vision.image(0, 16, 48)).n_tokens == 1 + 2 * 6
    with pytest.raises(PromptError, match="20 × 48, which patches of 8 × 8 do not fill"):
        scope.capture(vision.image(0, 20, 48))
    with pytest.raises(PromptError, match="differ in size"):
        scope.capture([vision.image(0, 16, 48), vision.image(0, 48, 16)])


def test_a_patch_may_have_one_number_for_both_sides():
    model = vision.tiny()
    model.patch_embed.patch_size = 8
    assert diffscope.load(model).capture(vision.image()).tokens[-1] == "3,3"
    assert diffscope.check(model).passed
    model.patch_embed.img_size = 32
    with pytest.raises(PromptError, match="16 × 32, but VisionTransformer takes 32 × 32"):
        diffscope.load(model).capture(vision.image(0, 16, 32))


def test_what_is_no_image_is_refused():
    scope = diffscope.load(vision.tiny())
    for prompt, words in [
        ("a cat", "looks at images, not at text; in Python"),
        ([1, 2, 3], r"not shape \(3,\)"),
        (object(), "not object"),
        (torch.zeros(0, 3, 32, 32), "not Tensor"),
        (torch.zeros(3, 16, 32), "16 × 32, but VisionTransformer takes 32 × 32"),
        (torch.zeros(1, 32, 32), "1 channels, but VisionTransformer takes 3"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), "whole numbers"),
    ]:
        with pytest.raises(PromptError, match=words) as error:
            scope.capture(prompt)
        assert "\n" not in str(error.value)
    with pytest.raises(SpanError, match="give slice"):
        scope.capture(vision.image(), spans={"object": "cat"})
    for refused in (scope.generate, scope.loss):
        with pytest.raises(UnsupportedModel, match="generates no text|predicts no next tokens"):
            refused(vision.image())
    with pytest.raises(UnsupportedModel, match="takes images and no tokens; capture an image"):
        scope.logits(torch.tensor([[1, 2]]))


def test_tokens_that_are_not_of_the_image_are_refused():
    model = vision.tiny()
    model.num_prefix_tokens = 0
    with pytest.raises(UnsupportedModel, match="makes 17 tokens of an image where its patches and prefix tokens are 16"):
        diffscope.load(model).capture(vision.image())


# statistics of maps that see all keys


@pytest.mark.parametrize("parallel", [False, True])
def test_statistics_where_every_key_is_seen(parallel):
    model = vision.tiny(parallel=parallel)
    scope = diffscope.load(model)
    capture = scope.capture(vision.image(), spans={"object": slice(6, 8)})
    measured = capture.measure(["row", "span", "branch", "layer", "rank"])
    d = np.stack([capture.map("D", 1, head) for head in range(4)])
    p = np.abs(d) / np.abs(d).sum(-1, keepdims=True)
    at = dict(layer=1, map="D")
    entropy = -(p * np.log(p)).sum(-1)
    assert np.allclose(measured["entropy"].sel(at), entropy, atol=1e-5)
    assert np.allclose(measured["entropy_normalised"].sel(at), entropy / np.log(17), atol=1e-5)
    assert np.allclose(measured["near_zero"].sel(at), (p < 0.1 / 17).mean(-1), atol=1e-6)
    assert np.allclose(measured["row_sum"].sel(at), 1 - capture.lam.values[1, 0], atol=1e-5)
    mass = measured["span_mass"].sel(at | dict(span="object"))
    assert np.allclose(mass.sel(normalisation="raw"), d[..., 6:8].sum(-1), atol=1e-5)
    assert not np.isnan(mass.sel(normalisation="share")).any()
    sink = measured["sink_mass"].sel(at | dict(sink_set="first_four", normalisation="share"))
    assert np.allclose(sink, p[..., :4].sum(-1), atol=1e-5)
    most = measured["column_sink"].sel(at | dict(normalisation="raw"))
    assert np.allclose(most, d.mean(1).max(-1), atol=1e-5)
    outputs = []
    handles = [block.register_forward_hook(lambda module, args, out: outputs.append(out)) for block in model.blocks]
    scope.capture(vision.image())
    for handle in handles:
        handle.remove()
    largest = [float(out.abs().max()) for out in outputs]
    assert np.allclose(measured["layer_output_outliers"].sel(outlier="top_1"), largest, rtol=1e-5) and largest[0] != largest[1]


def test_the_uniform_map_beside_a_rank_is_that_of_the_mask():
    """All rows of it are alike where every key is seen, so every rank is 1; below a diagonal it is of full rank."""
    capture = diffscope.load(vision.tiny()).capture(vision.image())
    ranks = capture.measure("effective_rank")["effective_rank"].sel(layer=1, head=2, ranked_map="D")
    assert np.allclose(ranks.sel(control="uniform"), 1, atol=1e-6)
    assert np.allclose(ranks.sel(control="ratio_uniform"), ranks.sel(control="map"))
    sigma = np.linalg.svd(capture.map("D", 1, 2).values.astype(np.float64), compute_uv=False)
    expected = np.exp(-(sigma / sigma.sum() * np.log(sigma / sigma.sum())).sum())
    assert DEFINITIONS[0] == "erank" and np.isclose(ranks.sel(control="map", definition="erank"), expected, rtol=1e-4)
    assert not np.allclose(ranks.sel(control="permuted"), ranks.sel(control="map"))
    residual = capture.measure("rank_residual")["rank_residual"].sel(layer=1, head=2, map="D")
    assert np.allclose(residual.sel(rank=[1, 2]), [np.sqrt((sigma[r:] ** 2).sum() / (sigma**2).sum()) for r in (1, 2)], atol=1e-4)


# on disk, and on the command line


def test_saved_and_reopened_it_answers_the_same(tmp_path):
    capture = diffscope.load(vision.tiny(parallel=True)).capture(
        [vision.image(0), vision.image(1)], spans={"object": slice(6, 8)}
    )
    capture.save(tmp_path / "images.dscope")
    again = diffscope.open(tmp_path / "images.dscope")
    assert np.array_equal(capture[1].map("D", 1, 2), again[1].map("D", 1, 2))
    assert again.tokens == capture.tokens and again.next == capture.next and again.spans == capture.spans
    assert again.measure("row").equals(capture.measure("row"))


@pytest.fixture(scope="module")
def folder(timm, tmp_path_factory):
    """A tiny model as timm saves one."""
    return saved(timm, tmp_path_factory.mktemp("vision") / "tiny")


def saved(timm, folder, **more):
    shape = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10)
    model = timm.create_model("vit_dwee_patch16_reg1_gap_256", **shape)
    timm.models.save_for_hf(vision.disturb(awake(model)), folder, safe_serialization=True, **more)
    return folder


def test_a_folder_of_timm_opens(timm, folder):
    scope = diffscope.load(folder)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert scope.family.name == "timm" and not scope.model.training and scope.tokenizer is None
    assert all(torch.equal(x, theirs.state_dict()[name]) for name, x in scope.model.state_dict().items())
    capture = scope.capture(vision.image())
    assert capture.n_tokens == 17 and capture.model_name == str(folder) and len(capture.next) == 10
    half = diffscope.load(folder, dtype="bfloat16", device="cpu")
    assert half.runner.dtype == torch.bfloat16 and half.model.blocks[0].attn.lambda_q1.dtype == torch.float32
    assert half.capture(vision.image()).fidelity.decided.all()


def test_a_hub_id_of_timm_opens_without_the_network(folder, tmp_path, monkeypatch):
    repository = tmp_path / "models--timm--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / ("0" * 40)).symlink_to(folder)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    capture = diffscope.load("timm/tiny").capture(vision.image())
    assert capture.model_name == "timm/tiny" and float(capture.fidelity.error.max()) < 1e-5


def test_a_folder_that_is_not_whole_is_refused(timm, folder, tmp_path, monkeypatch):
    from safetensors.torch import load_file, save_file

    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    lacking = {name: x for name, x in tensors.items() if name != "blocks.0.attn.qkv.weight"}

    def variant(name, config=config, tensors=tensors, file="model.safetensors"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / name / file)
        return tmp_path / name

    for broken, kind, words in [
        (variant("lacking", tensors=lacking), diffscope.CorruptFile, "lack 1 tensors, the first 'blocks.0.attn.qkv.weight'"),
        (variant("beyond", tensors={**tensors, "x": torch.ones(1)}), diffscope.CorruptFile, "hold beyond the model 1 tensors"),
        (
            variant("other", tensors={**tensors, "norm.x": torch.ones(1)}, file="a.safetensors"),
            diffscope.CorruptFile,
            "has no model.s",
        ),
        (
            variant("shape", config={**config, "model_args": {**config["model_args"], "num_classes": 7}}),
            diffscope.CorruptFile,
            "cannot be loaded",
        ),
        (variant("unknown", config={**config, "architecture": "vit_nothing"}), UnsupportedModel, "cannot be built by timm"),
    ]:
        with pytest.raises(kind, match=words) as error:
            diffscope.load(broken)
        assert "\n" not in str(error.value)
    with pytest.raises(diffscope.CorruptFile, match="as a pickle"):
        pickled = variant("pickled", file="x")
        (pickled / "x").rename(pickled / "pytorch_model.bin")
        diffscope.load(pickled)
    with pytest.raises(UnsupportedModel, match="takes no device_map"):
        diffscope.load(folder, device_map="auto")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(diffscope.MissingExtra, match=r"diffscope-attention\[vision\]"):
        diffscope.load(folder)


def test_the_command_line(folder, tmp_path):
    from typer.testing import CliRunner

    from diffscope.cli import cli

    def run(*words):
        return CliRunner().invoke(cli, [str(word) for word in words])

    refused = run("capture", "--model", folder, "--prompt", "a cat")
    assert isinstance(refused.exception, PromptError) and "in Python" in str(refused.exception)
    diffscope.load(folder).capture(vision.image(), spans={"object": slice(6, 8)}).save(tmp_path / "image.dscope")
    for words in (("measure", tmp_path / "image.dscope", "--statistics", "all"), *(figure(tmp_path, kind) for kind in FIGURES)):
        done = run(*words)
        assert done.exit_code == 0, (words, done.output, done.exception)
    assert all((tmp_path / f"{kind}.html").is_file() for kind in FIGURES)


FIGURES = ("maps", "row", "lambdas", "fidelity", "heads")


def figure(folder, kind):
    place = ("--layer", 1, "--head", 2) if kind in ("maps", "row") else ()
    return "figure", folder / "image.dscope", "--kind", kind, *place, "--out", folder / f"{kind}.html"
