"""What is trained: a network of one hidden layer that learns to imitate a fixed one of the same shape."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]

INPUTS = 48
HIDDEN = 192
OUTPUTS = 8
PARAMETERS = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS
BATCH = 64
LABEL_NOISE = 0.05
"""The floor of the loss: the square of it cannot be learnt."""

LEARNING_RATE = 0.05
MOMENTUM = 0.9
STEEPNESS = 3.0

TEACHER = 1
BATCHES = 2
START = 3
"""Words that keep the streams of random numbers apart."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs `[sample, feature]` and wanted outputs `[sample, output]`."""

    inputs: Matrix
    wanted: Matrix


@dataclass(slots=True)
class State:
    """All that must survive a restart: steps done, parameters and their momentum, flat float32."""

    step: int
    parameters: Vector
    momentum: Vector

    def flat(self) -> Vector:
        """Return parameters and momentum as one vector, the form a checkpoint stores."""
        return np.concatenate((self.parameters, self.momentum))


def state_from_flat(step: int, flat: Vector) -> State:
    """Return the state that `flat` (parameters, then momentum) holds after `step` steps."""
    if flat.size != 2 * PARAMETERS:
        raise ValueError(f"a state has {2 * PARAMETERS} numbers, not {flat.size}")
    return State(step=step, parameters=flat[:PARAMETERS].copy(), momentum=flat[PARAMETERS:].copy())


def state_first(seed: int) -> State:
    """Return the state before the first step: small random weights, no momentum."""
    return State(step=0, parameters=_random_weights([seed, START]), momentum=np.zeros(PARAMETERS, np.float32))


def teacher_weights(seed: int) -> Vector:
    """Return the weights that are to be found: steeper than those training starts from, so that it takes hours."""
    flat = _random_weights([seed, TEACHER])
    _layers(flat)[0][:] *= np.float32(STEEPNESS)
    return flat


def batch_make(teacher: Vector, *, seed: int, step: int, rank: int) -> Batch:
    """Return the batch of one rank at one step; the same arguments give the same batch after a restart."""
    numbers = np.random.default_rng([seed, BATCHES, step, rank])
    inputs = numbers.standard_normal((BATCH, INPUTS), dtype=np.float32)
    noise = numbers.standard_normal((BATCH, OUTPUTS), dtype=np.float32)
    return Batch(inputs=inputs, wanted=_outputs(teacher, inputs)[1] + np.float32(LABEL_NOISE) * noise)


def loss_and_gradient(parameters: Vector, batch: Batch, *, poison: bool = False) -> tuple[float, Vector]:
    """Return the mean squared error and its gradient.

    `poison`: one number of the hidden layer comes out as NaN, as from a broken unit; loss and gradient follow from it.
    """
    hidden, outputs = _outputs(parameters, batch.inputs)
    if poison:
        hidden[0, 0] = np.nan
        outputs = hidden @ _layers(parameters)[2] + _layers(parameters)[3]
    difference = outputs - batch.wanted
    loss = float(np.mean(difference * difference))
    slope = difference * np.float32(2.0 / difference.size)
    gradient = np.empty(PARAMETERS, np.float32)
    weights_1, bias_1, weights_2, bias_2 = _layers(gradient)
    weights_2[:] = hidden.T @ slope
    bias_2[:] = slope.sum(axis=0)
    back = (slope @ _layers(parameters)[2].T) * (1 - hidden * hidden)
    weights_1[:] = batch.inputs.T @ back
    bias_1[:] = back.sum(axis=0)
    return loss, gradient


def step_take(state: State, mean_gradient: Vector) -> bool:
    """Move `state` one step down the gradient; return False where the step was left out.

    A gradient that is not finite counts as a step done but changes nothing, as a loss scaler would have it: one rank's
    NaN must not be spread into everybody's parameters.
    """
    state.step += 1
    if not np.isfinite(mean_gradient).all():
        return False
    state.momentum *= np.float32(MOMENTUM)
    state.momentum += mean_gradient
    state.parameters -= np.float32(LEARNING_RATE) * state.momentum
    return True


def _layers(flat: Vector) -> tuple[Matrix, Vector, Matrix, Vector]:
    """Return views of a flat vector as the two layers' weights and biases."""
    first = INPUTS * HIDDEN
    second = first + HIDDEN
    third = second + HIDDEN * OUTPUTS
    return (
        flat[:first].reshape(INPUTS, HIDDEN),
        flat[first:second],
        flat[second:third].reshape(HIDDEN, OUTPUTS),
        flat[third:],
    )


def _outputs(parameters: Vector, inputs: Matrix) -> tuple[Matrix, Matrix]:
    weights_1, bias_1, weights_2, bias_2 = _layers(parameters)
    hidden: Matrix = np.tanh(inputs @ weights_1 + bias_1)
    return hidden, hidden @ weights_2 + bias_2


def _random_weights(seed: list[int]) -> Vector:
    flat = np.random.default_rng(seed).standard_normal(PARAMETERS, dtype=np.float32)
    weights_1, bias_1, weights_2, bias_2 = _layers(flat)
    weights_1 /= np.float32(np.sqrt(INPUTS))
    weights_2 /= np.float32(np.sqrt(HIDDEN))
    bias_1 *= np.float32(0.1)
    bias_2 *= np.float32(0.1)
    return flat
