"""What is trained: real gradients, a loss that falls, and a step that a NaN cannot spoil."""

import numpy as np
import pytest

from apps.rehearsal.trainer import model


def trained(steps: int) -> tuple[list[float], model.State]:
    teacher, state = model.teacher_weights(1), model.state_first(1)
    losses = []
    for step in range(1, steps + 1):
        batch = model.batch_make(teacher, seed=1, step=step, rank=0)
        loss, gradient = model.loss_and_gradient(state.parameters, batch)
        model.step_take(state, gradient)
        losses.append(loss)
    return losses, state


def test_the_loss_falls() -> None:
    losses, state = trained(80)

    assert np.mean(losses[-10:]) < 0.3 * losses[0]
    assert state.step == 80


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    batch = model.batch_make(model.teacher_weights(1), seed=1, step=1, rank=0)
    parameters = model.state_first(1).parameters
    _, gradient = model.loss_and_gradient(parameters, batch)
    direction = gradient / np.linalg.norm(gradient)

    ahead, _ = model.loss_and_gradient(parameters + np.float32(1e-2) * direction, batch)
    behind, _ = model.loss_and_gradient(parameters - np.float32(1e-2) * direction, batch)

    assert (ahead - behind) / 2e-2 == pytest.approx(float(np.linalg.norm(gradient)), rel=0.02)


def test_the_same_step_and_rank_give_the_same_batch_and_another_rank_another() -> None:
    teacher = model.teacher_weights(1)

    first = model.batch_make(teacher, seed=1, step=7, rank=2)
    again = model.batch_make(teacher, seed=1, step=7, rank=2)
    other = model.batch_make(teacher, seed=1, step=7, rank=3)

    assert np.array_equal(first.inputs, again.inputs)
    assert np.array_equal(first.wanted, again.wanted)
    assert not np.array_equal(first.inputs, other.inputs)


def test_one_bad_number_in_the_hidden_layer_makes_loss_and_gradient_nan() -> None:
    batch = model.batch_make(model.teacher_weights(1), seed=1, step=1, rank=0)

    loss, gradient = model.loss_and_gradient(model.state_first(1).parameters, batch, poison=True)

    assert np.isnan(loss)
    assert np.isnan(np.linalg.norm(gradient))


def test_a_gradient_that_is_not_finite_counts_a_step_and_changes_nothing() -> None:
    state = model.state_first(1)
    before = state.flat()
    gradient = np.full(model.PARAMETERS, np.nan, np.float32)

    taken = model.step_take(state, gradient)

    assert not taken
    assert state.step == 1
    assert np.array_equal(before, state.flat())


def test_a_state_survives_the_flat_form_to_the_bit() -> None:
    _, state = trained(3)

    again = model.state_from_flat(3, state.flat())

    assert np.array_equal(again.parameters, state.parameters)
    assert np.array_equal(again.momentum, state.momentum)
    with pytest.raises(ValueError, match="a state has"):
        model.state_from_flat(3, state.flat()[:-1])
