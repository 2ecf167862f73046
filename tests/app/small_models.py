"""Small models with a tokenizer of their own, and examples for them."""

import functools
from pathlib import Path

from diffscope.prompts.encoded import Chars
from diffscope.tasks import TextPrompt
from tests import tiny

APP = Path(__file__).parents[2] / "app"
PROMPT = "The magic number of Paris is 7421. The magic number of Rome is 1983. The magic number of Paris is"
HOSTILE = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>[a](javascript:window.hit=1) **b** $x$"


def example(name, text=PROMPT):
    def where(piece):
        return [Chars(text.index(piece), text.index(piece) + len(piece))]

    return TextPrompt(name, text, {"answer": where("7421"), "needles": where("Rome") + where("1983")}, "7421")


@functools.cache
def tokenizer():
    """A tokenizer of few tokens, which read the prompt as words and numbers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from diffscope.tasks.text import standard_library_text

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # Texts of the library too, as of any tokenizer many words begin with a token: filler is drawn from one such place to another.
    texts = [PROMPT] * 1000 + list(standard_library_text(True)[:300])
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


def save_model(folder, attention, layers):
    import torch

    from diffscope.models import DiffConfig, DiffForCausalLM

    tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    config = DiffConfig(
        attention=attention,
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
    )
    tiny.awake(DiffForCausalLM(config)).save_pretrained(folder)
    return folder


def save_run(folder):
    """A differential model after 10 steps, with checkpoints of other weights at the steps 0 and 4."""
    from diffscope.lab.training.run import save_checkpoint, write_metrics
    from diffscope.models import DiffForCausalLM

    save_model(folder, "v1", 3)
    model = DiffForCausalLM.from_pretrained(folder)
    for step in (0, 4):
        other = DiffForCausalLM(model.config)
        other.load_state_dict({name: tensor * (1.5 + step) for name, tensor in model.state_dict().items()})
        save_checkpoint(other, folder / "checkpoints" / f"step-{step:06d}")
    write_metrics(folder, [{"step": 10, "text_loss": 3.0}])
    return folder
