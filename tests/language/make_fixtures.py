"""Makes the folders beside this file: tiny random models as `transformers` writes them, with its logits and text.

python make_fixtures.py [NAME...]        (all, or these; needs torch, transformers, tokenizers)
"""

import json
import pathlib
import shutil
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

HERE = pathlib.Path(__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog, and the dog jumps over the fox 0123456789 ."
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] | trim }}"
    "{% endfor %}{% if add_generation_prompt %}{{ ' the' }}{% endif %}"
)
SIZES = dict(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.3,
    eos_token_id=None,
    bos_token_id=None,
    pad_token_id=None,
)
SCALING = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
# Shorter than the prompt, so that its last tokens do not see its first.
WINDOW = 8
DEEPER = {**SIZES, "num_hidden_layers": 3}


def rope(kind, **settings):
    return dict(rope_type=kind, rope_theta=1e4, **settings)


def llama(**settings):
    return LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=False, **settings)


# name: (class, config)
MODELS = {
    "qwen2": lambda: (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True, rope_theta=1e4)),
    "qwen3": lambda: (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False, rope_theta=1e5)),
    "llama": lambda: llama(rope_theta=1e3, rope_scaling=SCALING),
    # Both kinds of attention, each with its own rotary base; the scale of queries is not that of `head_dim`.
    "gemma3": lambda: (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **DEEPER,
            head_dim=8,
            query_pre_attn_scalar=16,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": dict(rope_type="default", rope_theta=1e4),
                "full_attention": dict(rope_type="linear", rope_theta=1e6, factor=8.0),
            },
            tie_word_embeddings=True,
        ),
    ),
    "olmo2": lambda: (Olmo2ForCausalLM, Olmo2Config(**SIZES, tie_word_embeddings=False, rope_theta=5e5)),
    # Frequencies are scaled in the layer with full attention alone.
    "olmo3": lambda: (
        Olmo3ForCausalLM,
        Olmo3Config(
            **DEEPER,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": dict(rope_type="default", rope_theta=5e5),
                "full_attention": rope("yarn", factor=4.0, original_max_position_embeddings=64),
            },
            tie_word_embeddings=False,
        ),
    ),
    # The layer in the middle does not rotate and has a window.
    "smollm3": lambda: (
        SmolLM3ForCausalLM,
        SmolLM3Config(
            **DEEPER, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=WINDOW, rope_theta=1e4
        ),
    ),
    "mistral": lambda: (
        MistralForCausalLM,
        MistralConfig(**SIZES, head_dim=8, sliding_window=WINDOW, tie_word_embeddings=False, rope_theta=1e4),
    ),
    "rope_linear": lambda: llama(rope_parameters=rope("linear", factor=4.0)),
    # Within `max_position_embeddings` it changes nothing.
    "rope_dynamic": lambda: llama(rope_parameters=rope("dynamic", factor=4.0)),
    "rope_yarn": lambda: llama(
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=64)
    ),
    # Six of the eight numbers of a head are rotated; q, k, v and the gate and its values lie in one tensor each.
    "phi3": lambda: (
        Phi3ForCausalLM,
        Phi3Config(
            **{**SIZES, "num_attention_heads": 2, "num_key_value_heads": 1},
            rope_parameters=rope("default", partial_rotary_factor=0.75),
            sliding_window=None,
            tie_word_embeddings=False,
        ),
    ),
    "biases": lambda: llama(head_dim=8, attention_bias=True, mlp_bias=True, rope_theta=1e4),
}


def tokenizer():
    own = Tokenizer(models.BPE(unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=64, special_tokens=["<unk>", "<eos>"], show_progress=False)
    own.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token="<unk>", eos_token="<eos>", chat_template=TEMPLATE
    )


def make(name):
    kind, config = MODELS[name]()
    torch.manual_seed(len(name) + ord(name[-1]))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = kind(config).eval().float()
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    # A quarter as large, and in pieces where one of them is Llama's.
    model.to(torch.bfloat16 if name == "qwen3" else torch.float32).save_pretrained(
        folder, max_shard_size="10KB" if name == "llama" else "1GB"
    )
    words = tokenizer()
    words.save_pretrained(folder)
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    is_first = name in ("qwen2", "qwen3", "llama")
    text = "the lazy fox jumps 42" if is_first else TEXT[:59]
    ids = words(text)["input_ids"]
    assert is_first or len(ids) > WINDOW, ids
    messages = [{"role": "user", "content": " jumps over "}]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
        # Without a cache, so that each token is that of a pass over all before it.
        greedy = model.generate(
            torch.tensor([ids]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0,
            use_cache=is_first,
        )
        best = model(greedy).logits[0, len(ids) - 1 : -1].topk(2).values
    gap = (best[:, 0] - best[:, 1]).min().item()
    print(f"{name}: {len(ids)} tokens of prompt, the second best is at least {gap:.5f} behind")
    assert gap > 1e-3, "too near for another order of sums"
    expected = dict(
        text=text,
        tokens=ids,
        logits=[[round(x, 6) for x in row] for row in logits[-2:].tolist()],
        greedy=greedy[0, len(ids) :].tolist(),
        chat=words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True),
    )
    for extra in ["generation_config.json", "special_tokens_map.json"]:
        (folder / extra).unlink(missing_ok=True)
    vocabulary = folder / "tokenizer.json"
    vocabulary.write_text(json.dumps(json.loads(vocabulary.read_text())) + "\n")
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        make(name)
