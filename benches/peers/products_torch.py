"""Matrix products of `benches/products.rs` by PyTorch, whose products on a CPU are oneDNN's: GFLOP/s.

    products_torch.py [--threads N]
"""

import argparse
import time

import torch

SIZES = [(2048, 576, 1536), (2048, 1536, 576), (512, 576, 49_152), (8, 576, 1536)]
REPEATS = 20


def best_rate(dtype, rows, inner, columns):
    x = torch.rand(rows, inner).to(dtype)
    # The weight of a linear layer, which is stored transposed.
    weight = torch.rand(columns, inner).to(dtype)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        seconds.append(time.perf_counter() - start)
    return 2 * rows * inner * columns / min(seconds) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    print(torch.get_num_threads(), "threads")
    with torch.inference_mode():
        for dtype in [torch.float32, torch.bfloat16]:
            print(dtype)
            for sizes in SIZES:
                print(f"{sizes}: {best_rate(dtype, *sizes):.0f} GFLOP/s")


if __name__ == "__main__":
    main()
