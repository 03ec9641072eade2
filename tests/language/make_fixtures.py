"""Makes the folders beside this file: tiny random models as `transformers` writes them, and what it says of them.

python make_fixtures.py        (needs torch, transformers, tokenizers)
"""

import json
import pathlib
import shutil

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
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


def tokenizer():
    own = Tokenizer(models.BPE(unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=64, special_tokens=["<unk>", "<eos>"], show_progress=False)
    own.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token="<unk>", eos_token="<eos>", chat_template=TEMPLATE
    )


def main():
    models_ = {
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True, rope_theta=1e4)),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False, rope_theta=1e5)),
        "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=False, rope_theta=1e3, rope_scaling=SCALING)),
    }
    for name, (kind, config) in models_.items():
        torch.manual_seed(len(name) + ord(name[-1]))
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model = kind(config).eval().float()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
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
        ids = words("the lazy fox jumps 42")["input_ids"]
        messages = [{"role": "user", "content": " jumps over "}]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
            greedy = model.generate(
                torch.tensor([ids]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        expected = dict(
            text="the lazy fox jumps 42",
            tokens=ids,
            logits=[[round(x, 6) for x in row] for row in logits[-2:].tolist()],
            greedy=greedy[0, len(ids) :].tolist(),
            chat=words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True),
        )
        for extra in ["generation_config.json", "special_tokens_map.json"]:
            (folder / extra).unlink(missing_ok=True)
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
