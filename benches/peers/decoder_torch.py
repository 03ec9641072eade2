"""A decoder on labelled sequences in PyTorch: training steps per second, in two variants.

`resident`: the data are on the device, and a batch indexes into them. `moved`: every batch is sliced from host
arrays, cloned and converted to tensors, as in programs that keep their data in lists. The model is that of Grove's
`policy.kind = "decoder"`: pre-norm, RMSNorm, rotary positions, grouped-query attention, SwiGLU; attention is
PyTorch's causal one. Prints one JSON object.
"""

import argparse
import json
import resource
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, size, heads, kv_heads, inner):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, size // heads
        self.norms = nn.ModuleList([nn.RMSNorm(size, eps=1e-6), nn.RMSNorm(size, eps=1e-6)])
        self.q = nn.Linear(size, size, bias=False)
        self.kv = nn.Linear(size, 2 * kv_heads * self.dim, bias=False)
        self.o = nn.Linear(size, size, bias=False)
        self.gate_up = nn.Linear(size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, x, turns):
        batch, steps, size = x.shape
        normed = self.norms[0](x)
        q = self.q(normed).view(batch, steps, self.heads, self.dim).transpose(1, 2)
        kv = self.kv(normed).view(batch, steps, 2, self.kv_heads, self.dim)
        k, v = kv.permute(2, 0, 3, 1, 4)
        q, k = turn(q, turns), turn(k, turns)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(found.transpose(1, 2).reshape(batch, steps, size))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def turn(x, turns):
    cos, sin = turns
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class Decoder(nn.Module):
    def __init__(self, features, actions, size, layers, heads, kv_heads, inner, steps):
        super().__init__()
        self.input = nn.Linear(features, size)
        self.layers = nn.ModuleList(Layer(size, heads, kv_heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(size, eps=1e-6)
        self.head = nn.Linear(size, actions, bias=False)
        half = size // heads // 2
        rates = 1e4 ** (-torch.arange(half) / half)
        angles = torch.arange(steps)[:, None] * rates
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, obs):
        x = self.input(obs)
        for layer in self.layers:
            x = layer(x, (self.cos, self.sin))
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in [
        ("batch", 64), ("steps", 256), ("features", 16), ("actions", 4), ("size", 128), ("layers", 4),
        ("heads", 4), ("kv-heads", 2), ("inner", 384), ("windows", 512), ("repeats", 5), ("threads", 0),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    obs = rng.standard_normal((args.windows, args.steps, args.features), dtype=np.float32)
    actions = rng.integers(0, args.actions, (args.windows, args.steps))
    resident = torch.from_numpy(obs), torch.from_numpy(actions)
    lists = list(obs), list(actions)
    model = Decoder(args.features, args.actions, args.size, args.layers, args.heads, args.kv_heads,
                    args.inner, args.steps)
    run = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def from_resident(rows):
        index = torch.from_numpy(rows)
        return resident[0][index], resident[1][index]

    def from_lists(rows):
        parts = [(torch.tensor(lists[0][i]).clone(), torch.tensor(lists[1][i]).clone()) for i in rows]
        return torch.stack([o for o, _ in parts]).clone(), torch.stack([a for _, a in parts]).clone()

    def epoch(batch_of):
        for rows in rng.permutation(args.windows).reshape(-1, args.batch):
            o, a = batch_of(rows)
            loss = F.cross_entropy(run(o).flatten(0, 1), a.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        return loss.item()

    kib = 1024 if sys.platform == "linux" else 1
    figures = {"memory_before_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kib}
    for name, batch_of in [("resident", from_resident), ("moved", from_lists)]:
        epoch(batch_of)
        rates = []
        for _ in range(args.repeats):
            start = time.perf_counter()
            epoch(batch_of)
            rates.append(args.windows * args.steps / (time.perf_counter() - start))
        if rates:
            figures[f"{name}_steps_per_second"] = {"median": float(np.median(rates)), "max": max(rates)}
    figures["num_parameters"] = sum(p.numel() for p in model.parameters())
    figures["threads"], figures["torch"] = torch.get_num_threads(), torch.__version__
    json.dump(figures, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
