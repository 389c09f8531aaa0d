"""What differs between the backends while `fit` runs."""


def bring_back(model):
    """Put the weights back into a model that is being fitted, for a callback to use.

    On JAX `fit` keeps them outside until the epoch ends: meanwhile the model has none, or old ones.
    """
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
