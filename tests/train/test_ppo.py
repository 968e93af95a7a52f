"""The parts of PPO: options, experience, the policy, the loss, minibatches."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.envs.policy_gradient import advantages, softmax
from brim.train.ppo import ActorCritic, Experience, PpoConfig, PpoRunConfig, RolloutPolicy
from brim.train.ppo.objective import PpoBatch, PpoLoss
from brim.train.ppo.policy import BLOCK
from brim.train.ppo.update import minibatches, normalized, samples_of

SIZE, ACTIONS = 5, 3
MODEL = ActorCritic(SIZE, ACTIONS, (8,), seed=3)


def experience(seed=0, steps=6, envs=4, invalid=0.2, model=MODEL):
    """A rollout of random numbers, with the log-probabilities and values of the model for them."""
    rng = np.random.default_rng(seed)
    shape = steps, envs
    observations = rng.normal(size=(*shape, SIZE)).astype(np.float32)
    policy = RolloutPolicy(model, envs, seed)
    chosen = [policy.act(row, np.arange(envs), np.full(envs, step)) for step, row in enumerate(observations)]
    ends = rng.random(shape)
    valid = rng.random(shape) >= invalid
    return Experience(
        observations=observations,
        actions=np.stack([actions for actions, _ in chosen]),
        log_probs=np.stack([more["log_probs"] for _, more in chosen]),
        values=np.stack([more["values"] for _, more in chosen]),
        next_observations=rng.normal(size=(*shape, SIZE)).astype(np.float32),
        rewards=rng.normal(size=shape),
        terminated=ends < 0.2,
        truncated=((ends >= 0.2) & (ends < 0.4)) | ~valid,
        valid=valid,
    )


def next_values(one, model=MODEL):
    flat = one.next_observations.reshape(-1, SIZE)
    return RolloutPolicy(model, one.num_envs, 0).values(flat).reshape(one.valid.shape)


def batch_of(seed=0, count=16, *, away=1.0, dtype=torch.float32):
    """A minibatch whose log-probabilities and values differ from those of any model by about `away`."""
    rng = np.random.default_rng(seed)
    numbers = {name: rng.normal(size=count) * away for name in ("values", "advantages", "returns")}
    return PpoBatch(
        observations=torch.tensor(rng.normal(size=(count, SIZE)), dtype=dtype),
        actions=torch.tensor(rng.integers(0, ACTIONS, count)),
        log_probs=torch.tensor(np.log(rng.uniform(0.1, 0.9, count)), dtype=dtype),
        **{name: torch.tensor(values, dtype=dtype) for name, values in numbers.items()},
        places=np.argwhere(np.ones((count, 1))),
        epoch=0,
        index=0,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"ppo_epoch": -1}, "ppo_epoch must be at least 1, got -1"),
        ({"num_mini_batch": 0}, "num_mini_batch must be at least 1, got 0"),
        ({"hidden": (64, 0)}, "hidden must be at least 1, got 0"),
        ({"discount": 1.01}, "discount must be between 0 and 1, got 1.01"),
        ({"gae_lambda": -0.1}, "gae_lambda must be between 0 and 1, got -0.1"),
        ({"gae_lambda": math.nan}, "gae_lambda must be between 0 and 1, got nan"),
        ({"clip_param": 0.0}, "clip_param must be above 0 and finite, got 0.0"),
        ({"clip_param": 1.0}, "clip_param must be below 1, got 1.0"),
        ({"value_clip": 0.0}, "value_clip must be above 0 and finite, got 0.0"),
        ({"target_kl": math.inf}, "target_kl must be above 0 and finite, got inf"),
        ({"value_coef": -1.0}, "value_coef must not be negative or infinite, got -1.0"),
        ({"entropy_coef": math.nan}, "entropy_coef must not be negative or infinite, got nan"),
    ],
)
def test_options_that_cannot_work_are_refused_with_their_value(options, message):
    with pytest.raises(OptionError, match=message):
        PpoConfig(**options)


def test_more_mini_batches_than_samples_are_refused_and_as_many_are_not():
    config = PpoConfig(num_steps=3, num_mini_batch=7)
    config.check_minibatches(3)
    with pytest.raises(
        OptionError, match=r"num_mini_batch must be at most 6, the samples of a rollout \(3 steps of 2 .*, got 7"
    ):
        config.check_minibatches(2)


def test_the_options_of_a_run_can_be_read_back_and_refuse_what_ppo_does_not_do():
    config = PpoRunConfig(output="x", ppo=PpoConfig(hidden=(8,), target_kl=None), learning_rate=0.01)
    assert PpoRunConfig.from_dict(config.to_dict()) == config
    assert (PpoRunConfig(output="x").base_learning_rate, config.base_learning_rate) == (3e-4, 0.01)
    with pytest.raises(OptionError, match="leave out bf16 and fsdp"):
        PpoRunConfig(output="x", bf16=True)


def test_experience_of_other_shapes_or_without_a_reward_is_refused():
    good = vars(experience(invalid=0.0))
    good = {name: good[name] for name in Experience.__dataclass_fields__}
    assert Experience(**good).valid_count == 24
    with pytest.raises(DataError, match=r"actions must have the shape \(6, 4\), .*, got \(4, 6\)"):
        Experience(**{**good, "actions": good["actions"].T})
    with pytest.raises(DataError, match=r"next_observations must have the shape \(6, 4, 5\)"):
        Experience(**{**good, "next_observations": good["next_observations"][..., :3]})
    with pytest.raises(DataError, match=r"observations must have the shape \(steps, environments, size\)"):
        Experience(**{**good, "observations": good["observations"][0]})
    rewards = good["rewards"].copy()
    rewards[2, 1] = math.nan
    with pytest.raises(DataError, match="the reward of step 2 of environment 1 is nan; mark"):
        Experience(**{**good, "rewards": rewards})
    valid = good["valid"].copy()
    valid[2, 1] = False
    assert Experience(**{**good, "rewards": rewards, "valid": valid}).valid_count == 23


def test_first_weights_depend_on_the_seed_alone_and_torchs_generator_is_unchanged():
    before = torch.get_rng_state()
    first, again, other = (ActorCritic(SIZE, ACTIONS, (8, 8), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert name.endswith("bias") or not torch.equal(weight, other.state_dict()[name])


def test_first_weights_are_orthogonal_with_the_gain_of_their_layer():
    model = ActorCritic(6, ACTIONS, (8, 8), seed=0)
    for layers, last in ((model.policy, 0.01), (model.value, 1.0)):
        linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
        for layer, gain in zip(linear, [math.sqrt(2), math.sqrt(2), last], strict=True):
            lengths = torch.linalg.svdvals(layer.weight)
            np.testing.assert_allclose(lengths.detach(), gain, rtol=1e-4)
            assert not layer.bias.any()
    assert not {weight.data_ptr() for weight in model.policy.parameters()} & {
        weight.data_ptr() for weight in model.value.parameters()
    }


ENVS = 2 * BLOCK + 7
WIDE = ActorCritic(33, 6, (64, 64), seed=1)
SEEN = np.random.default_rng(5).normal(size=(ENVS, 33)).astype(np.float32)
NUMBERS = np.arange(ENVS) * 3 % 11


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=ENVS, max_size=ENVS), st.randoms(use_true_random=False))
def test_any_partition_of_the_environments_gives_the_same_actions_to_the_last_bit(groups, random):
    policy = RolloutPolicy(WIDE, ENVS, seed=2)
    actions, more = policy.act(SEEN, np.arange(ENVS), NUMBERS)
    for group in set(groups):
        ids = [id for id in range(ENVS) if groups[id] == group]
        random.shuffle(ids)
        ids = np.array(ids)
        some, further = policy.act(SEEN[ids], ids, NUMBERS[ids])
        assert (some == actions[ids]).all()
        for name, values in more.items():
            assert further[name].tobytes() == values[ids].tobytes()


def test_log_probs_and_values_are_those_of_the_network():
    actions, more = RolloutPolicy(WIDE, ENVS, seed=2).act(SEEN, np.arange(ENVS), NUMBERS)
    with torch.no_grad():
        logits, values = WIDE(torch.from_numpy(SEEN))
    chances = softmax(logits.double().numpy())
    np.testing.assert_allclose(np.exp(more["log_probs"]), chances[np.arange(ENVS), actions], rtol=1e-5)
    np.testing.assert_allclose(more["values"], values, rtol=1e-4, atol=1e-5)


def test_actions_are_sampled_by_their_chances_with_another_number_for_every_step():
    model = ActorCritic(2, 3, (), seed=0)
    with torch.no_grad():
        model.policy[0].bias[:] = torch.tensor([0.0, math.log(2), math.log(5)])
    policy = RolloutPolicy(model, 16, seed=0)
    seen = np.zeros((16, 2), np.float32)
    drawn = np.stack([policy.act(seen, np.arange(16), np.full(16, number))[0] for number in range(200)])
    counts = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    np.testing.assert_allclose(counts, [1 / 8, 2 / 8, 5 / 8], atol=0.03)
    assert len({tuple(row) for row in drawn}) > 190
    assert len({tuple(lane) for lane in drawn.T}) == 16
    assert (policy.greedy(seen) == 2).all()


def test_values_and_greedy_actions_are_those_of_the_network_for_any_number_of_rows():
    policy = RolloutPolicy(WIDE, 4, seed=0)
    with torch.no_grad():
        logits, values = WIDE(torch.from_numpy(SEEN))
    for count in (0, 1, BLOCK, ENVS):
        np.testing.assert_allclose(policy.values(SEEN[:count]), values[:count], rtol=1e-4, atol=1e-5)
        assert (policy.greedy(SEEN[:count]) == logits.argmax(dim=1).numpy()[:count]).all()
        assert policy.values(SEEN[:count]).tobytes() == policy.values(SEEN)[:count].tobytes()


@pytest.mark.parametrize(
    ("observations", "ids", "numbers", "message"),
    [
        (np.zeros((2, 4)), [0, 1], [0, 0], r"need observations of shape \(2, 5\) .*, got \(2, 4\) and \(2,\)"),
        (np.zeros((2, 5)), [0, 1], [0], r"got \(2, 5\) and \(1,\)"),
        (np.zeros((2, 5)), [1, 1], [0, 0], r"different numbers from 0 to 2, got \[1, 1\]"),
        (np.zeros((1, 5)), [3], [0], r"from 0 to 2, got \[3\]"),
        (np.zeros((1, 5)), [-1], [0], r"from 0 to 2, got \[-1\]"),
    ],
)
def test_a_call_for_environments_that_do_not_exist_is_refused(observations, ids, numbers, message):
    with pytest.raises(DataError, match=message):
        RolloutPolicy(MODEL, 3, seed=0).act(observations, np.array(ids), np.array(numbers))


def plain_loss(batch, config, logits, values):
    """The loss of PPO, sample by sample."""
    total, figures = 0.0, dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl", "clip_fraction"), 0.0)
    low, high = 1 - config.clip_param, 1 + config.clip_param
    for row in range(len(values)):
        chances = np.exp(logits[row]) / np.exp(logits[row]).sum()
        ratio = chances[int(batch.actions[row])] / math.exp(batch.log_probs[row])
        advantage, target, before = (float(column[row]) for column in (batch.advantages, batch.returns, batch.values))
        policy_loss = -min(ratio * advantage, min(max(ratio, low), high) * advantage)
        error = (values[row] - target) ** 2
        if config.value_clip is not None:
            near = before + min(max(values[row] - before, -config.value_clip), config.value_clip)
            error = max(error, (near - target) ** 2)
        entropy = -sum(chance * math.log(chance) for chance in chances)
        total += policy_loss + config.value_coef * error / 2 - config.entropy_coef * entropy
        figures["policy_loss"] += policy_loss
        figures["value_loss"] += error / 2
        figures["entropy"] += entropy
        figures["kl"] += ratio - 1 - math.log(ratio)
        figures["clip_fraction"] += not low <= ratio <= high
    return total, {name: value / len(values) for name, value in figures.items()}


configs = st.builds(
    PpoConfig,
    clip_param=st.floats(0.05, 0.5),
    value_clip=st.none() | st.floats(0.05, 1.0),
    value_coef=st.floats(0, 2),
    entropy_coef=st.floats(0, 0.5),
)


@settings(max_examples=40)
@given(st.integers(0, 2**16), configs)
def test_the_loss_is_that_of_its_definition_sample_by_sample(seed, config):
    model = ActorCritic(SIZE, ACTIONS, (4,), seed=seed).double()
    objective, batch = PpoLoss(model, config), batch_of(seed, dtype=torch.float64)
    loss = objective(batch).item()
    logits, values = (part.detach().numpy() for part in model(batch.observations))
    expected, figures = plain_loss(batch, config, logits, values)
    assert loss == pytest.approx(expected)
    assert objective.metrics() == pytest.approx(figures, abs=1e-9)


def test_the_gradient_is_the_slope_of_the_definition():
    """Against finite differences of the plain definition, where no sample is on the edge of a clip."""
    config = PpoConfig(entropy_coef=0.05)
    model = ActorCritic(SIZE, ACTIONS, (), seed=0).double()
    batch = batch_of(4, dtype=torch.float64)
    PpoLoss(model, config)(batch).backward()

    def definition():
        with torch.no_grad():
            logits, values = model(batch.observations)
        return plain_loss(batch, config, logits.numpy(), values.numpy())[0]

    moved = 0
    for weight in model.parameters():
        for place in np.ndindex(*weight.shape):
            with torch.no_grad():
                weight[place] += 1e-6
                above = definition()
                weight[place] -= 2e-6
                below = definition()
                weight[place] += 1e-6
            assert float(weight.grad[place]) == pytest.approx((above - below) / 2e-6, abs=1e-5)
            moved += float(weight.grad[place]) != 0
    assert moved > 10


def test_a_sample_beyond_the_clip_that_would_go_further_has_no_gradient():
    model = ActorCritic(1, 2, (), seed=0).double()  # both actions have the chance 1/2

    def slope(old_chance, advantage):
        batch = PpoBatch(
            observations=torch.ones((1, 1), dtype=torch.float64),
            actions=torch.tensor([0]),
            log_probs=torch.tensor([math.log(old_chance)], dtype=torch.float64),
            values=torch.zeros(1, dtype=torch.float64),
            advantages=torch.tensor([advantage], dtype=torch.float64),
            returns=torch.zeros(1, dtype=torch.float64),
            places=np.zeros((1, 2), np.int64),
            epoch=0,
            index=0,
        )
        model.zero_grad()
        PpoLoss(model, PpoConfig(value_coef=0, entropy_coef=0))(batch).backward()
        return float(model.policy[0].bias.grad[0])

    assert slope(0.25, 1.0) == 0.0  # the ratio is 2, and a higher one would be better
    assert slope(0.25, -1.0) > 0
    assert slope(0.9, -1.0) == 0.0  # the ratio is 0.56, and a lower one would be better
    assert slope(0.9, 1.0) < 0
    assert slope(0.5, 1.0) < 0


@settings(max_examples=50)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_every_pass_has_every_valid_sample_once_in_nearly_equal_parts(steps, envs, parts, passes, seed):
    config = PpoConfig(num_mini_batch=parts, ppo_epoch=passes)
    one = experience(seed, steps, envs, invalid=0.3)
    samples = samples_of(one, next_values(one), config)
    assert len(samples) == one.valid_count
    found = list(minibatches(samples, config, seed=1, update=7))
    per_pass = min(parts, one.valid_count)
    assert len(found) == per_pass * passes
    assert [batch.index for batch in found] == list(range(len(found)))
    valid = {(step, env) for step, env in np.argwhere(one.valid).tolist()}
    for number in range(passes):
        part = found[number * per_pass : (number + 1) * per_pass]
        places = [tuple(place) for batch in part for place in batch.places.tolist()]
        assert sorted(places) == sorted(valid)
        sizes = {batch.num_tokens for batch in part}
        assert not sizes or max(sizes) - min(sizes) <= 1
    for batch in found:
        assert batch.num_loss_tokens == batch.num_tokens == batch.slots == len(batch.ids)
        for row, (step, env) in enumerate(batch.places.tolist()):
            assert batch.ids[row] == f"step {step} of environment {env}"
            assert batch.observations[row].tolist() == one.observations[step, env].tolist()
            assert int(batch.actions[row]) == one.actions[step, env]


def test_passes_and_updates_have_orders_of_their_own_which_the_seed_repeats():
    one, config = experience(invalid=0.0), PpoConfig(num_mini_batch=1, ppo_epoch=3)
    samples = samples_of(one, next_values(one), config)

    def orders(**key):
        return [tuple(batch.ids) for batch in minibatches(samples, config, **key)]

    found = [*orders(seed=0, update=0), *orders(seed=0, update=1), *orders(seed=1, update=0)]
    assert len(set(found)) == 9
    assert orders(seed=0, update=1) == found[3:6]


@settings(max_examples=50)
@given(st.integers(0, 999), st.booleans())
def test_returns_are_advantages_plus_values_and_only_advantages_are_normalised(seed, normalize):
    config = PpoConfig(normalize_advantages=normalize, num_mini_batch=1, ppo_epoch=1)
    one = experience(seed)
    after = next_values(one)
    flags = one.terminated, one.truncated, one.valid
    plain = advantages(one.rewards, one.values, after, *flags, discount=config.discount, trace=config.gae_lambda)
    samples = samples_of(one, after, config)
    np.testing.assert_allclose(samples.returns, (plain + one.values)[one.valid])
    if normalize:
        np.testing.assert_allclose([samples.advantages.mean(), samples.advantages.std()], [0, 1], atol=1e-9)
        assert (np.argsort(samples.advantages) == np.argsort(plain[one.valid])).all()
    else:
        assert (samples.advantages == plain[one.valid]).all()


@pytest.mark.parametrize("values", [[], [3.0], [0.1, 0.1, 0.1], [1e-9, 0.0]])
def test_advantages_without_spread_become_zeros(values):
    assert (normalized(np.array(values)) == 0).all()


@settings(max_examples=50)
@given(st.integers(0, 2**16), st.sampled_from([math.nan, math.inf, 1e30]), st.integers(0, 2**16))
def test_nothing_about_an_invalid_step_reaches_the_loss_or_a_gradient(seed, odd, other):
    rng = np.random.default_rng(other)
    one = experience(seed, invalid=0.4)
    invalid = ~one.valid
    columns = {name: getattr(one, name).copy() for name in Experience.__dataclass_fields__}
    columns["rewards"][invalid] = odd
    columns["actions"][invalid] = rng.integers(-5, 99)
    columns["log_probs"][invalid] = odd
    columns["values"][invalid] = odd
    columns["next_observations"][invalid] = odd
    columns["observations"][invalid] = odd  # the step before has its own copy, as its next one
    for name in ("terminated", "truncated"):
        columns[name][invalid] = rng.random(int(invalid.sum())) < 0.5
    before, after = learned(one), learned(Experience(**columns))
    assert before == after
    assert one.valid_count == 0 or len(before) > 0


def learned(one):
    """Loss and gradient of every minibatch, as bytes."""
    config = PpoConfig(num_mini_batch=2, ppo_epoch=1)
    samples = samples_of(one, next_values(one), config)
    found = []
    for batch in minibatches(samples, config, seed=0, update=0):
        MODEL.zero_grad()
        loss = PpoLoss(MODEL, config)(batch)
        loss.backward()
        found.append([loss.detach().numpy().tobytes(), *(weight.grad.numpy().tobytes() for weight in WEIGHTS)])
    return found


WEIGHTS = list(MODEL.parameters())


def test_explained_variance_is_1_for_perfect_values_0_for_a_constant_and_unknown_without_variance():
    one = experience(invalid=0.0)
    columns = {name: getattr(one, name) for name in Experience.__dataclass_fields__}

    def explained(values, rewards=one.rewards):
        ended = np.ones_like(one.valid)  # so that a return is a reward
        changed = {**columns, "rewards": rewards, "values": values, "terminated": ended}
        return samples_of(Experience(**changed), next_values(one), PpoConfig()).explained_variance

    assert explained(one.rewards.astype(np.float32)) == pytest.approx(1)
    assert explained(np.zeros_like(one.values)) == pytest.approx(0)
    assert explained(-one.rewards.astype(np.float32)) == pytest.approx(-3)
    assert explained(one.values, np.ones_like(one.rewards)) is None


def test_next_values_of_another_shape_are_refused():
    one = experience()
    with pytest.raises(DataError, match=r"next_values must have the shape \(6, 4\), got \(4, 6\)"):
        samples_of(one, next_values(one).T, PpoConfig())
