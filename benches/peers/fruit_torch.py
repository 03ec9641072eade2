"""GRPO on the fruit catcher in idiomatic PyTorch.

The environment consists of a few tensors [levels, starts], the policy is an nn.Module, and the update one
clipped-ratio loss over all steps of the epoch with autograd and AdamW. The members of a group are the 17 starts of
a level: the first fruit is the same, the basket's position differs.
"""

import sys

import torch
from torch import nn

from measure import arguments, captured, cores, figure, report, use_threads

WIDTH, HEIGHT, FRUITS, INTERVAL = 20, 15, 3, 5
STARTS = WIDTH - 3
FEATURES = 1 + 3 * FRUITS
DISCOUNT, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.2, 0.01, 1e-3


class FruitCatcher:
    """[levels, 17] games. Fruits are a queue in order of appearance, so the lowest is first."""

    def __init__(self, levels, device):
        self.shape = (levels, STARTS)
        self.device = device
        self.slots = torch.arange(FRUITS, device=device)

    def reset(self):
        levels = self.shape[0]
        self.basket = torch.arange(1.0, STARTS + 1, device=self.device).expand(self.shape)
        self.x = torch.zeros(*self.shape, FRUITS, device=self.device)
        self.x[..., 0] = torch.randint(WIDTH, (levels, 1), device=self.device).float()
        self.y = torch.zeros(*self.shape, FRUITS, device=self.device)
        self.there = (self.slots == 0).expand(*self.shape, FRUITS)
        self.fallen = torch.zeros(self.shape, device=self.device)  # rows that the newest fruit has fallen
        return self.features()

    def features(self):
        """Returns the basket's column, and each fruit's distance, row and presence."""
        there = self.there.float()
        return torch.cat(
            [
                (self.basket * (2 / (WIDTH - 1)) - 1).unsqueeze(-1),
                (self.x - self.basket.unsqueeze(-1)) * (there / WIDTH),
                self.y * (there / HEIGHT),
                there,
            ],
            dim=-1,
        )

    def step(self, action):
        """Moves the basket by action - 1; returns features, catches and misses."""
        self.basket = (self.basket + (action - 1)).clamp(0, WIDTH - 1)
        self.y = self.y + 1
        self.fallen = self.fallen + 1

        # Fruits are at least INTERVAL rows apart, so only the first of the queue can land.
        landed = self.there[..., 0] & (self.y[..., 0] == HEIGHT - 1)
        caught = landed & ((self.x[..., 0] - self.basket).abs() <= 1)
        shift = landed.unsqueeze(-1)
        self.x = torch.where(shift, self.x.roll(-1, -1), self.x)
        self.y = torch.where(shift, self.y.roll(-1, -1), self.y)
        count = self.there.sum(-1) - landed.long()

        coin = torch.rand(self.shape, device=self.device) < 0.5
        more = coin & ~landed & (count < FRUITS) & (self.fallen >= INTERVAL)
        spawn = (count == 0) | more
        self.put(spawn, count)
        self.fallen = self.fallen.masked_fill(spawn, 0)
        self.there = self.slots < (count + spawn.long()).unsqueeze(-1)
        return self.features(), caught.float(), (landed & ~caught).float()

    def put(self, spawn, count):
        """Appends a new fruit in the games where `spawn` is true."""
        new = spawn.unsqueeze(-1) & (self.slots == count.unsqueeze(-1))
        column = torch.randint(WIDTH, self.shape, device=self.device).float()
        self.x = torch.where(new, column.unsqueeze(-1), self.x)
        self.y = self.y.masked_fill(new, 0)


class LoopedFruitCatcher(FruitCatcher):
    """A variant that inserts new fruits one by one: all columns are drawn in one call, then a loop runs over the
    games, as in the (optimized) PyTorch program from which Grove's fruit catcher originates."""

    def put(self, spawn, count):
        self.x, self.y = self.x.clone(), self.y.clone()
        columns = torch.randint(WIDTH, (int(spawn.sum()),), device=self.device).float()
        for column, (level, start) in zip(columns, spawn.nonzero().tolist()):
            slot = count[level, start]
            self.x[level, start, slot] = column
            self.y[level, start, slot] = 0


class Brain(nn.Module):
    """A multi-layer perceptron from features to action logits."""

    def __init__(self, hidden):
        super().__init__()
        sizes = [FEATURES, *hidden]
        layers = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 3))

    def forward(self, x):
        return torch.log_softmax(self.layers(x), dim=-1)


class Trainer:
    def __init__(self, args):
        catcher = LoopedFruitCatcher if args.spawn == "looped" else FruitCatcher
        self.device = args.device
        self.game = catcher(args.num_envs // STARTS, args.device)
        self.steps = args.num_steps
        self.brain = Brain(args.hidden).to(args.device)
        self.optimizer = torch.optim.AdamW(
            self.brain.parameters(), LEARNING_RATE, fused=True, capturable=args.graph
        )
        self.stepwise = args.loss == "stepwise"
        self.score = torch.tensor(float("nan"))
        if args.compile:
            # The functions that run a hundred times per epoch, and the loss with its gradient, each as one graph
            # of fixed sizes.
            graph = {"dynamic": False, "fullgraph": True}
            self.game.step = torch.compile(self.game.step, **graph)
            self.act = torch.compile(self.act, **graph)
            self.loss = torch.compile(self.loss, **graph)
        if args.graph:
            # An epoch holds a rollout of its own, not the captured one.
            whole = {name: captured(getattr(self, name)) for name in ("play_at_random", "play", "epoch")}
            for name, graph in whole.items():
                setattr(self, name, graph)

    @torch.no_grad()
    def play_at_random(self):
        self.game.reset()
        total = torch.zeros((), device=self.device)
        for _ in range(self.steps):
            features, catches, misses = self.game.step(torch.randint(3, self.game.shape, device=self.device))
            total += features.sum() + catches.sum() - misses.sum()
        return total

    def act(self, features):
        """Samples an action for every game; returns it with its log-probability."""
        logp = self.brain(features)
        # Inverse transform sampling with one uniform number is faster than torch.multinomial.
        bounds = logp[..., :2].exp().cumsum(-1)
        action = (torch.rand(*self.game.shape, 1, device=self.device) >= bounds).sum(-1)
        return action, logp.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def play(self):
        """Plays one episode of every game: features, actions, log-probabilities, rewards."""
        obs, actions, logprobs, rewards = [], [], [], []
        score = torch.zeros(self.game.shape, device=self.device)
        features = self.game.reset()
        for _ in range(self.steps):
            action, logprob = self.act(features)
            obs.append(features)
            actions.append(action)
            logprobs.append(logprob)
            features, catches, misses = self.game.step(action)
            rewards.append((catches - 0.5 * misses - 0.01 + 0.05).clamp(-2, 2))
            score += catches - misses
        self.score = score.mean()
        return [torch.stack(part) for part in (obs, actions, logprobs, rewards)]

    def advantages(self, rewards):
        """Returns the discounted reward-to-go, normalized by the group's mean and deviation at the same step."""
        returns = torch.empty_like(rewards)
        running = torch.zeros_like(rewards[0])
        for t in reversed(range(len(rewards))):
            running = rewards[t] + DISCOUNT * running
            returns[t] = running
        mean = returns.mean(-1, keepdim=True)
        return (returns - mean) / (returns.std(-1, keepdim=True) + 1e-4)

    def loss(self, obs, actions, logprobs, advantages):
        logp = self.brain(obs)
        ratio = (logp.gather(-1, actions.unsqueeze(-1)).squeeze(-1) - logprobs).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        gain = torch.min(ratio * advantages, clipped * advantages).mean()
        entropy = -(logp.exp() * logp).sum(-1).mean()
        return -gain - ENTROPY * entropy

    def epoch(self):
        """Plays one episode of every game and updates the policy once."""
        obs, actions, logprobs, rewards = self.play()
        data = (obs, actions, logprobs, self.advantages(rewards))
        if self.stepwise:
            loss = torch.stack([self.loss(*step) for step in zip(*data)]).mean()
        else:
            loss = self.loss(*data)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.brain.parameters(), 1.0)
        self.optimizer.step()


def best_threads(trainer, threads):
    """Chooses one thread or all of them, whichever trains faster; for small tensors it is often one."""

    def rate(threads):
        torch.set_num_threads(threads)
        return figure(trainer.epoch, 1, repeats=2, warm_up=1)["median"]

    best = max({1, threads}, key=rate)
    torch.set_num_threads(best)
    return best


def main():
    parser = arguments(num_envs=32 * STARTS, num_steps=100, hidden=[64])
    parser.add_argument(
        "--loss",
        choices=["batched", "stepwise"],
        default="batched",
        help="all steps in one forward pass, or one per step",
    )
    parser.add_argument(
        "--spawn",
        choices=["batched", "looped"],
        default="batched",
        help="insert new fruits for all games at once, or one by one",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="use torch.compile for the game's step, the policy and the loss (needs a C++ compiler)",
    )
    parser.add_argument(
        "--graph", action="store_true", help="capture rollout and epoch as CUDA graphs (needs --device cuda)"
    )
    parser.add_argument("--epochs", type=int, help="only train for this many epochs and print the scores")
    args = parser.parse_args()
    use_threads(args.threads)
    torch.manual_seed(1)
    trainer = Trainer(args)
    if args.device == "cpu":
        args.threads = best_threads(trainer, args.threads or cores())
    if args.epochs:
        for epoch in range(args.epochs):
            trainer.epoch()
            if epoch % 20 == 19:
                print(f"epoch {epoch + 1}: score {trainer.score.item():.2f}", file=sys.stderr)
        return
    steps = args.num_envs * args.num_steps

    def measured(work):
        def whole():
            work()
            if args.device != "cpu":
                torch.cuda.synchronize()

        return figure(whole, steps, args.repeats)

    figures = {"trained_steps_per_second": measured(trainer.epoch)}
    looped = args.spawn == "looped"
    if looped or args.compile or not trainer.stepwise:  # these two do not depend on the loss
        figures |= {
            "rules_steps_per_second": measured(trainer.play_at_random),
            "policy_steps_per_second": measured(trainer.play),
        }
    report(
        "PyTorch"
        + ", compiled" * args.compile
        + ", one graph" * args.graph
        + ", loss step by step" * trainer.stepwise
        + ", fruits one by one" * looped,
        args,
        ["torch"],
        env="fruit",
        updates_per_iteration=1,
        **figures,
    )


if __name__ == "__main__":
    main()
