"""GRPO of a language model in PyTorch: tokens per second of generation, update and whole iterations.

`loop` is an explicit PyTorch loop with a preallocated KV cache, one prefill per group and no redundant work.
`transformers` uses that package's model and its `generate`. `trl` is TRL's GRPOTrainer. All have the same sizes,
those of `tiny` or of SmolLM2-135M (`135M` has its layers and the vocabulary of `tiny`), with random weights, and all
completions have the maximum length. Prints one JSON object.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time

import torch
from decoder_torch import turn
from measure import captured
from torch import nn
from torch.nn import functional as F

NAMES = {"loop": "PyTorch, written out", "transformers": "transformers", "trl": "TRL"}
SIZES = {
    "tiny": dict(vocabulary=12, size=128, layers=4, heads=4, kv_heads=2, inner=384, bias=True),
    "135M": dict(vocabulary=12, size=576, layers=30, heads=9, kv_heads=3, inner=1536, bias=True),
    "smollm2": dict(vocabulary=49152, size=576, layers=30, heads=9, kv_heads=3, inner=1536, bias=False),
}


class Layer(nn.Module):
    def __init__(self, size, heads, kv_heads, inner, bias, **_):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, size // heads
        self.first, self.second = nn.RMSNorm(size, eps=1e-6), nn.RMSNorm(size, eps=1e-6)
        self.qkv = nn.Linear(size, (heads + 2 * kv_heads) * self.dim, bias=bias)
        self.o = nn.Linear(size, size, bias=False)
        self.gate_up = nn.Linear(size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x, turns, cache=None, at=0):
        """`x` is [batch, steps, size]; `cache`, [2, batch, kv_heads, length, dim], is written from index `at` on."""
        batch, steps, size = x.shape
        qkv = self.qkv(self.first(x)).view(batch, steps, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        q, k = turn(q, turns), turn(k, turns)
        if cache is not None:
            cache[0][:, :, at : at + steps], cache[1][:, :, at : at + steps] = k, v
            k, v = cache[0][:, :, : at + steps], cache[1][:, :, : at + steps]
        found = F.scaled_dot_product_attention(q, k, v, is_causal=steps > 1, enable_gqa=True)
        x = x + self.o(found.transpose(1, 2).reshape(batch, steps, size))
        gate, up = self.gate_up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """A decoder over tokens with tied embeddings."""

    def __init__(self, vocabulary, layers, context, **sizes):
        super().__init__()
        self.table = nn.Embedding(vocabulary, sizes["size"])
        nn.init.normal_(self.table.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(**sizes) for _ in range(layers))
        self.norm = nn.RMSNorm(sizes["size"], eps=1e-6)
        self.dim = sizes["size"] // sizes["heads"]
        rates = 1e4 ** (-torch.arange(self.dim // 2) / (self.dim // 2))
        angles = torch.arange(context)[:, None] * rates
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def hidden(self, tokens, caches=None, at=0):
        x, steps = self.table(tokens), tokens.shape[1]
        turns = self.cos[at : at + steps], self.sin[at : at + steps]
        for number, layer in enumerate(self.layers):
            x = layer(x, turns, None if caches is None else caches[number], at)
        return self.norm(x)

    def logits(self, hidden):
        return hidden @ self.table.weight.T


class Loop:
    """The explicit loop."""

    def __init__(self, args):
        self.args = args
        context = args.prompt_tokens + args.completion_tokens
        self.model = Decoder(context=context, **SIZES[args.model])
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-5, fused=True, capturable=args.graph
        )
        if args.compile:
            for layer in self.model.layers:
                layer.compile()
        if args.graph:
            self.generate = captured(self.generate)
            made, learn = self.generate(), self.learn
            learnt = captured(lambda: learn(*made))
            self.learn = lambda *_: learnt()

    @torch.no_grad()
    def generate(self):
        args, model = self.args, self.model
        sizes, group = SIZES[args.model], args.group_size
        prompts = torch.randint(sizes["vocabulary"], (args.num_prompts, args.prompt_tokens))
        count, length = args.num_prompts * group, args.prompt_tokens + args.completion_tokens
        shape = (2, count, sizes["kv_heads"], length, model.dim)
        caches = [torch.empty(shape) for _ in model.layers]
        some = [torch.empty(2, args.num_prompts, *shape[2:]) for _ in model.layers]
        hidden = model.hidden(prompts, some)[:, -1]
        for cache, prompt in zip(caches, some):
            cache.copy_(prompt.repeat_interleave(group, 1))
        hidden = hidden.repeat_interleave(group, 0)
        tokens, logprobs = [], []
        for at in range(args.completion_tokens):
            all_logprobs = model.logits(hidden).log_softmax(-1)
            # The exponential race of torch.multinomial, without its checks, which a graph cannot hold.
            token = (all_logprobs.exp() / torch.empty_like(all_logprobs).exponential_()).argmax(-1, True)
            tokens.append(token)
            logprobs.append(all_logprobs.gather(1, token))
            if at + 1 < args.completion_tokens:
                hidden = model.hidden(token, caches, args.prompt_tokens + at)[:, -1]
        return prompts.repeat_interleave(group, 0), torch.cat(tokens, 1), torch.cat(logprobs, 1)

    def learn(self, prompts, tokens, old):
        args = self.args
        rewards = torch.rand(args.num_prompts, args.group_size)
        advantages = (rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)
        advantages = advantages.reshape(-1, 1)
        self.optimizer.zero_grad(set_to_none=True)
        micro = args.micro_batch or len(tokens)
        for start in range(0, len(tokens), micro):
            part = slice(start, start + micro)
            text = torch.cat([prompts[part], tokens[part]], 1)[:, :-1]
            hidden = self.model.hidden(text)[:, args.prompt_tokens - 1 :]
            logits = self.model.logits(hidden)
            taken = -F.cross_entropy(logits.flatten(0, 1), tokens[part].flatten(), reduction="none")
            ratio = (taken.view_as(old[part]) - old[part]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.min(ratio * advantages[part], clipped * advantages[part]).sum() / old.numel()
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


class Transformers(Loop):
    """The model and `generate` of transformers."""

    def __init__(self, args):
        self.args = args
        self.model = hugging_face(args)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    @torch.no_grad()
    def generate(self):
        args = self.args
        vocabulary = SIZES[args.model]["vocabulary"]
        prompts = torch.randint(vocabulary, (args.num_prompts, args.prompt_tokens))
        prompts = prompts.repeat_interleave(args.group_size, 0)
        count = args.completion_tokens
        made = self.model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, top_p=1.0,
            min_new_tokens=count, max_new_tokens=count, pad_token_id=0,
        )  # fmt: skip
        tokens = made[:, args.prompt_tokens :]
        return prompts, tokens, torch.zeros(tokens.shape)

    def learn(self, prompts, tokens, old):
        # The sampler's log-probabilities are not timed: TRL uses those of the first forward pass.
        model = self.model

        class Around(nn.Module):
            def __init__(self):
                super().__init__()
                self.parameters = model.parameters

            def hidden(self, text):
                return model.model(text).last_hidden_state

            def logits(self, hidden):
                return model.lm_head(hidden)

        self.model = Around()
        super().learn(prompts, tokens, old)
        self.model = model


def hugging_face(args):
    """Creates a transformers model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    sizes = SIZES[args.model]
    config, kind = (Qwen2Config, Qwen2ForCausalLM) if sizes["bias"] else (LlamaConfig, LlamaForCausalLM)
    config = config(
        vocab_size=sizes["vocabulary"], hidden_size=sizes["size"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv_heads"],
        intermediate_size=sizes["inner"], tie_word_embeddings=True, attn_implementation="sdpa",
        max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return kind(config)


def by_trl(args):
    """Returns the seconds of each step of TRL's trainer, including warm-up."""
    import datasets
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    vocabulary = SIZES[args.model]["vocabulary"]
    words = {f"t{i}": i for i in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", eos_token="t1")
    prompt = " ".join(f"t{2 + i % (vocabulary - 2)}" for i in range(args.prompt_tokens))
    steps = args.repeats + 2
    data = datasets.Dataset.from_list([{"prompt": prompt}] * (args.num_prompts * steps))
    marks = []

    class Marks(TrainerCallback):
        def on_step_begin(self, *_, **__):
            marks.append(time.perf_counter())

    count = args.num_prompts * args.group_size
    micro = args.micro_batch or count
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=args.device == "cpu", bf16=args.precision == "bf16", max_steps=steps, beta=0.0, report_to=[],
            per_device_train_batch_size=micro, gradient_accumulation_steps=count // micro,
            num_generations=args.group_size, max_completion_length=args.completion_tokens,
            save_strategy="no", logging_steps=1000, disable_tqdm=True, gradient_checkpointing=False,
            generation_kwargs={"min_new_tokens": args.completion_tokens},
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=hugging_face(args), args=config, train_dataset=data, processing_class=tokenizer,
            reward_funcs=lambda completions, **_: torch.rand(len(completions)).tolist(),
            callbacks=[Marks()],
        )  # fmt: skip
        trainer.train()
    return [after - before for before, after in zip(marks[2:], marks[3:])]


def rate(tokens, seconds):
    """Returns tokens per second over several measurements."""
    rates = [tokens / one for one in seconds]
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("who", choices=["loop", "transformers", "trl"])
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=9)
    parser.add_argument("--completion-tokens", type=int, default=9)
    parser.add_argument("--micro-batch", type=int, default=0, help="completions per micro-batch; 0 for all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for an NVIDIA GPU [cpu]")
    parser.add_argument("--graph", action="store_true", help="`loop` as two CUDA graphs (needs --device cuda)")
    parser.add_argument("--compile", action="store_true", help="`loop` with layers by torch.compile")
    parser.add_argument(
        "--precision", choices=["f32", "tf32", "bf16"], default="f32", help="of weights and arithmetic"
    )
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.precision == "bf16":
        torch.set_default_dtype(torch.bfloat16)
    if args.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    torch.set_default_device(args.device)
    on_gpu = args.device != "cpu"
    tokens = args.num_prompts * args.group_size * args.completion_tokens
    figures = {
        "peer": NAMES[args.who] + ", compiled" * args.compile + ", graphs" * args.graph, "device": args.device, "model": args.model, "num_envs": args.num_prompts * args.group_size,
        "num_steps": args.completion_tokens, "precision": args.precision, "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip
    if args.who == "trl":
        seconds = by_trl(args)
    else:
        seconds, parts = [], {"generated": [], "learnt": []}
        program = Loop(args) if args.who == "loop" else Transformers(args)
        for number in range(args.repeats + 2):
            begin = time.perf_counter()
            made = program.generate()
            if on_gpu:
                torch.cuda.synchronize()
            middle = time.perf_counter()
            program.learn(*made)
            if on_gpu:
                torch.cuda.synchronize()
            end = time.perf_counter()
            if number >= 2:
                parts["generated"].append(middle - begin)
                parts["learnt"].append(end - middle)
                seconds.append(end - begin)
        for name, times in parts.items():
            figures[f"{name}_per_second"] = rate(tokens, times)
    figures["trained_per_second"] = rate(tokens, seconds)
    kib = 1024 if sys.platform == "linux" else 1
    figures["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kib
    if on_gpu:
        figures["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
