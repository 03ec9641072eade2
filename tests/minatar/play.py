#!/usr/bin/env python3
"""Plays MinAtar's Breakout by the package itself, and prints all that can be seen of it.

    pip install numpy && pip install --no-deps minatar==1.0.15
    python tests/minatar/play.py --episodes 1000 > /tmp/breakout.txt
    GROVE_MINATAR=/tmp/breakout.txt cargo test --release --test suite breakout_is_minatars

The test then plays the same actions by Grove's rules and compares every board, reward and end; without
the variable it takes tests/minatar/breakout.txt, which this made with
--skilled 1 --episodes 12 --steps 420 --seed 5.

A line is `side S` where an episode starts (0: the ball comes from the left, 1: from the right) or a
step: its action, reward, whether the episode ended, and the board after it: the cells (10 row + column) of
paddle, ball and trail, and the bricks as a hexadecimal number, row by row, the first the lowest bit.
"""
import argparse
import logging
import random

logging.disable(logging.WARNING)  # of the libraries that draw windows
from minatar import Environment  # noqa: E402


def board(env):
    """The board as the package shows it, without a look at anything else."""
    state = env.state()
    assert state.shape == (10, 10, 4)
    places = []
    for channel in range(3):
        cells = state[:, :, channel].flatten().nonzero()[0]
        assert len(cells) == 1
        places.append(int(cells[0]))
    cells = state[:, :, 3].flatten().nonzero()[0]
    assert all(10 <= cell < 40 for cell in cells)
    return places, sum(1 << int(cell - 10) for cell in cells)


def skilled(places):
    """A random move of those that keep the paddle near the ball's next column, and under it at last."""
    paddle, ball, trail = (place % 10 for place in places)
    after = min(9, max(0, ball + (ball - trail)))
    near = (ball, after) if places[1] >= 80 else (after - 1, after, after + 1)
    to = {action: paddle for action in range(6)} | {1: max(0, paddle - 1), 3: min(9, paddle + 1)}
    moves = [action for action in to if to[action] in near]
    return random.choice(moves) if moves else 1 if after < paddle else 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=1000, help="of random play")
    parser.add_argument("--skilled", type=int, default=0, help="episodes of a player that aims, before those")
    parser.add_argument("--steps", type=int, default=5000, help="the most of an episode")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    env = Environment("breakout", sticky_action_prob=0.0)
    env.seed(args.seed)
    random.seed(args.seed)
    assert env.minimal_action_set() == [0, 1, 3] and env.num_actions() == 6
    for episode in range(args.skilled + args.episodes):
        env.reset()
        places, bricks = board(env)
        assert places[0] == 94 and places[1] == places[2] and bricks == (1 << 30) - 1
        print("side", {30: 0, 39: 1}[places[1]])
        for _ in range(args.steps):
            action = skilled(places) if episode < args.skilled else random.randrange(6)
            reward, end = env.act(action)
            places, bricks = board(env)
            print(action, reward, int(end), *places, f"{bricks:x}")
            if end:
                break


main()
