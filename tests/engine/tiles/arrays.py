"""Values as training jobs produce them, and hypothesis strategies for arrays of cells."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

NAN = np.nan

ANY_CELLS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12), elements=st.floats(width=32)
)
"""Small arrays of any float32 at all: NaN, infinities, −0.0 and numbers too small to be normal among them."""

WHOLE_CELLS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.one_of(st.just(NAN), st.integers(-(2**24), 2**24).map(float)),
)
"""Counters and masks, some of them absent."""


def training_metrics(n_ranks=1024, n_steps=64, seed=0):
    """Eight metrics of `n_ranks` × `n_steps`: a chip's own pace, a step's length, noise, one straggler (rank 17)."""
    rng = np.random.default_rng(seed)
    noise = lambda cv: 1 + cv * rng.normal(size=(n_ranks, n_steps))  # noqa: E731
    own, step = 1 + 0.005 * rng.normal(size=(n_ranks, 1)), 1 + 0.005 * rng.normal(size=(1, n_steps))
    compute = 3.1 * own * step * noise(0.01)
    compute[17 % n_ranks] *= 1.3
    data = 0.02 * np.exp(0.2 * rng.normal(size=(n_ranks, n_steps)))
    optimizer = 0.12 * (1 + 0.003 * rng.normal(size=(n_ranks, 1))) * noise(0.005)
    slowest = (compute + data + optimizer).max(axis=0) + 0.3
    replicas = np.arange(n_ranks) // 8
    loss = 2.3 * np.exp(-0.0001 * np.arange(n_steps)) * noise(0.01)[replicas]
    grad_norm = np.broadcast_to(0.4 * (1 + 0.1 * rng.normal(size=n_steps)), (n_ranks, n_steps))
    found = {
        "step_s": slowest + 0.0005 * np.abs(rng.normal(size=(n_ranks, n_steps))),
        "compute_s": compute,
        "communication_s": slowest - compute - data - optimizer,
        "data_s": data,
        "optimizer_s": optimizer,
        "loss": loss,
        "grad_norm": grad_norm,
        "tokens": np.full((n_ranks, n_steps), 8192.0),
    }
    return {name: values.astype(np.float32) for name, values in found.items()}
