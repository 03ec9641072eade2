"""GRPO on gymnax's Catch in idiomatic JAX: everything in one jitted scan.

Games are [groups, members]; the members of a group share their keys, so that they see the same balls. The policy
observes the board (rows x columns, gymnax's observation) or the four features of Grove's Catch.
"""

from functools import partial
from itertools import count

from measure import arguments, figure, report, use_threads

MINIBATCHES = 4
DISCOUNT, CLIP, ENTROPY, LEARNING_RATE = 0.97, 0.2, 0.02, 2e-3


def main():
    parser = arguments(num_envs=4096, num_steps=38, hidden=[128])
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--observation", choices=["board", "features"], default="board")
    parser.add_argument("--iterations", type=int, help="only train for this many iterations and print the rewards")
    args = parser.parse_args()
    use_threads(args.threads)  # before JAX starts its own
    import jax

    jax.config.update("jax_platforms", args.device)
    run(args, jax)


def make_env(args, jax):
    """Returns the games' functions `reset` and `step`, and the number of features of an observation."""
    import jax.numpy as jnp
    from gymnax.environments.bsuite.catch import Catch

    rows, columns = args.rows, args.columns
    env = Catch(rows=rows, columns=columns)
    params = env.default_params
    groups, members = args.num_envs // args.group_size, args.group_size
    # One key per group; one state and action per member.
    over_games = lambda f: jax.vmap(jax.vmap(f, (None, 0, 0)), (0, 0, 0))
    env_step = over_games(lambda key, state, action: env.step(key, state, action, params))

    def observe(board, state):
        """Returns the policy's observation, [groups, members, features]."""
        if args.observation == "board":
            return board.reshape(groups, members, rows * columns)
        return jnp.stack(
            [
                state.ball_x * (2 / (columns - 1)) - 1,
                state.ball_y * (2 / (rows - 1)) - 1,
                state.paddle_x * (2 / (columns - 1)) - 1,
                (state.ball_x - state.paddle_x) / (columns - 1),
            ],
            axis=-1,
        )

    def reset(key):
        keys = jax.random.split(key, groups)
        first = jax.vmap(lambda key: env.reset(key, params))(keys)
        board, state = jax.tree.map(
            lambda x: jnp.broadcast_to(x[:, None], (groups, members, *x.shape[1:])), first
        )
        return state, observe(board, state)

    def step(key, state, action):
        keys = jax.random.split(key, groups)
        board, state, reward, terminated, truncated, _ = env_step(keys, state, action)
        return state, observe(board, state), reward, terminated | truncated

    return reset, step, rows * columns if args.observation == "board" else 4


def make_network(args, jax, inputs):
    """Returns the first weights of the policy, and its function `log_probs`."""
    import jax.numpy as jnp

    sizes = [inputs, *args.hidden, 3]
    gains = [2**0.5] * len(args.hidden) + [0.01]
    init = [jax.nn.initializers.orthogonal(gain) for gain in gains]
    keys = jax.random.split(jax.random.key(1), len(gains))
    shapes = zip(sizes, sizes[1:])
    weights = [(f(k, s), jnp.zeros(s[1])) for f, k, s in zip(init, keys, shapes)]

    def log_probs(weights, obs):
        x = obs
        for matrix, bias in weights[:-1]:
            x = jax.nn.relu(x @ matrix + bias)
        matrix, bias = weights[-1]
        return jax.nn.log_softmax(x @ matrix + bias)

    return weights, log_probs


def chosen(jax, logp, action):
    # The gradient of indexing would be a slow scatter.
    return (logp * jax.nn.one_hot(action, 3)).sum(axis=-1)


def make_rollout(args, jax, reset, step, log_probs):
    """Returns the functions `play_at_random` and `rollout`."""
    games = (args.num_envs // args.group_size, args.group_size)

    @jax.jit
    def play_at_random(key):
        """Returns the sum of all rewards and observations, so that no compiler can eliminate them."""

        def one(carry, key):
            state, total = carry
            key_action, key_step = jax.random.split(key)
            action = jax.random.randint(key_action, games, 0, 3)
            state, obs, reward, _ = step(key_step, state, action)
            return (state, total + obs.sum() + reward.sum()), None

        key_reset, key = jax.random.split(key)
        state, _ = reset(key_reset)
        carry, _ = jax.lax.scan(one, (state, 0.0), jax.random.split(key, args.num_steps))
        return carry[1]

    def rollout(weights, key):
        """Returns observations, actions, log-probabilities, rewards, ends: [steps, groups, members, ...]."""

        def one(carry, key):
            state, obs = carry
            key_action, key_step = jax.random.split(key)
            logp = log_probs(weights, obs)
            action = jax.random.categorical(key_action, logp)
            state, next_obs, reward, done = step(key_step, state, action)
            return (state, next_obs), (obs, action, chosen(jax, logp, action), reward, done)

        key_reset, key = jax.random.split(key)
        return jax.lax.scan(one, reset(key_reset), jax.random.split(key, args.num_steps))[1]

    return play_at_random, rollout


def make_update(jax, rollout, log_probs):
    """Returns the optimizer, and the function `iterate`."""
    import jax.numpy as jnp
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE))

    def advantages(reward, done):
        """Returns the reward-to-go relative to the group's mean at the same step, scaled by the batch."""

        def back(later, now):
            reward, done = now
            total = reward + DISCOUNT * later * (1 - done)
            return total, total

        zero = jnp.zeros(reward.shape[1:])
        _, returns = jax.lax.scan(back, zero, (reward, done), reverse=True)
        centred = returns - returns.mean(axis=-1, keepdims=True)
        return centred / (centred.std() + 1e-4)

    def loss(weights, obs, action, old, advantage):
        logp = log_probs(weights, obs)
        ratio = jnp.exp(chosen(jax, logp, action) - old)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
        gain = jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return -gain + ENTROPY * (jnp.exp(logp) * logp).sum(axis=-1).mean()

    @partial(jax.jit, donate_argnums=0)
    def iterate(training, key):
        """Runs a rollout and one epoch. Groups are in random order, so any subset is a fair sample."""
        obs, action, old, reward, done = rollout(training[0], key)
        data = (obs, action, old, advantages(reward, done))

        def update(training, i):
            weights, moments = training
            size = reward.shape[1] // MINIBATCHES
            part = [jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=1) for x in data]
            part = [x.reshape(-1, *x.shape[3:]) for x in part]  # [steps and games, ...]
            gradient = jax.grad(loss)(weights, *part)
            change, moments = optimizer.update(gradient, moments, weights)
            return (optax.apply_updates(weights, change), moments), None

        training, _ = jax.lax.scan(update, training, jnp.arange(MINIBATCHES))
        return training, reward.sum() / done.sum()

    return optimizer, iterate


def run(args, jax):
    reset, step, inputs = make_env(args, jax)
    weights, log_probs = make_network(args, jax, inputs)
    play_at_random, rollout = make_rollout(args, jax, reset, step, log_probs)
    optimizer, iterate = make_update(jax, rollout, log_probs)
    play = jax.jit(rollout)
    keys = (jax.random.key(seed) for seed in count(2))
    # A copy, because each iteration donates its arguments' buffers.
    training = jax.tree.map(jax.numpy.array, (weights, optimizer.init(weights)))

    def train():
        nonlocal training
        training, reward = jax.block_until_ready(iterate(training, next(keys)))
        return reward

    if args.iterations:
        for i in range(args.iterations):
            print(f"iteration {i + 1}: reward {train():.3f}")
        return
    steps = args.num_envs * args.num_steps
    measured = lambda f: figure(lambda: jax.block_until_ready(f()), steps, args.repeats)
    report(
        f"JAX, {args.observation}",
        args,
        ["jax", "jaxlib", "gymnax", "optax", "numpy"],
        env="catch",
        rows=args.rows,
        columns=args.columns,
        group_size=args.group_size,
        updates_per_iteration=MINIBATCHES,
        rules_steps_per_second=measured(lambda: play_at_random(next(keys))),
        policy_steps_per_second=measured(lambda: play(weights, next(keys))),
        trained_steps_per_second=figure(train, steps, args.repeats),
    )


if __name__ == "__main__":
    main()
