"""A feed-forward network of which every token uses a part.

Letters: B batch, T tokens, all in one axis, D features, F intermediate, E experts, k experts of a token, C capacity.

Sources: Shazeer et al. 2017 (https://arxiv.org/abs/1701.06538); capacity and the balancing loss: Fedus et al. 2021,
"Switch Transformers" (https://arxiv.org/abs/2101.03961); the router's z-loss: Zoph et al. 2022, "ST-MoE"
(https://arxiv.org/abs/2202.08906); gated experts: Jiang et al. 2024, "Mixtral" (https://arxiv.org/abs/2401.04088).
"""

import math

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number, check_size
from keras_transformer.layers.activations import get_activation
from keras_transformer.layers.common import DenseOptions, check_mask, check_rate, clone_initializer, plain_int, register
from keras_transformer.ops.routing import balancing_loss, places_in_experts, route, z_loss


@register
class MixtureOfExperts(keras.layers.Layer):
    """A router sends each token to `num_experts_per_token` of `num_experts` feed-forward networks.

    `output = sum over the chosen experts e of p_e * W2_e (activation(Wg_e x) * W1_e x)`, where p are the router's
    probabilities, computed in float32. Use it as `feed_forward=` of a block, or alone.

    No token is dropped, unless `capacity_factor` is set, and then in training only: an expert takes at most
    `C = ceil(capacity_factor * k * B * T / E)` tokens of a batch, all first choices before all second ones, in the
    order of the batch; what finds no place gives zeros there (and lives on in the residual). Masked tokens take no
    place.

    What it costs: with capacity, as many products as C * E tokens in one feed-forward network. Without, every token
    goes through every expert, E / k times as many as needed, in one large product without sorting, which is what keeps
    shapes fixed. Where 4 k B T <= E, as for one text that is being written, only the chosen experts' weights are read.

    Args:
        num_experts: E.
        intermediate_dim: inner size of each expert, F.
        num_experts_per_token: k.
        activation: of the experts.
        gated: multiply by an activated gate.
        capacity_factor: see above; 1.25 is Switch's. None: no limit.
        load_balancing_loss: factor on Switch's loss, added in training: `E * sum over e of (tokens sent to e / tokens)
            * (mean of p_e)`, k when all experts get the same. Masked tokens do not count. Mixtral has 0.001 to 0.02.
        normalize_weights: make the p of the chosen experts sum to 1 (Mixtral). With one expert per token say False
            (Switch): its weight would be 1 always, and the router would learn nothing.
        router_z_loss: factor on the mean square of the router's log partition function, added in training.
        dropout: rate on the inner activations.
        use_bias: whether the experts' projections have biases.
        seed: seed of the dropout.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of the experts, each of which is initialized as by itself; the router's kernel is
            initialized in the same way.

    Call arguments:
        inputs: (B, ..., D); a mask (B, ...) is passed on.

    Returns:
        The same shape.

    Raises:
        ValueError: a size, rate or factor is none; there are fewer experts than a token is to have; a mask does not
            fit.

    Example: `EncoderBlock(8, feed_forward=MixtureOfExperts(num_experts=8, intermediate_dim=1024))(x)`
    """

    def __init__(
        self,
        num_experts,
        intermediate_dim,
        num_experts_per_token=2,
        activation="silu",
        gated=True,
        capacity_factor=None,
        load_balancing_loss=0.0,
        normalize_weights=True,
        router_z_loss=0.0,
        dropout=0.0,
        use_bias=False,
        seed=None,
        **kwargs,
    ):
        check_size(
            num_experts=num_experts, intermediate_dim=intermediate_dim, num_experts_per_token=num_experts_per_token
        )
        check_rate(dropout=dropout)
        if num_experts_per_token > num_experts:
            raise ValueError(
                "`num_experts_per_token` must not be above `num_experts`. "
                f"Received: num_experts_per_token={num_experts_per_token}, num_experts={num_experts}"
            )
        if normalize_weights and num_experts_per_token == 1 < num_experts:
            raise ValueError(
                "With `num_experts_per_token=1` say `normalize_weights=False`: the only weight, normalized, is 1, and "
                f"the router learns nothing. Received: normalize_weights={normalize_weights}"
            )
        if capacity_factor is not None:
            check_positive_number(capacity_factor=capacity_factor)
        for name, value in (("load_balancing_loss", load_balancing_loss), ("router_z_loss", router_z_loss)):
            if value:
                check_positive_number(**{name: value})
        self.dense_options = DenseOptions(kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_experts = int(num_experts)
        self.intermediate_dim = int(intermediate_dim)
        self.num_experts_per_token = int(num_experts_per_token)
        self.activation = get_activation(activation)
        self.gated = gated
        self.capacity_factor = capacity_factor
        self.load_balancing_loss = load_balancing_loss
        self.normalize_weights = normalize_weights
        self.router_z_loss = router_z_loss
        self.dropout = dropout
        self.use_bias = use_bias
        self.seed = plain_int(seed)
        self.dropout_layer = keras.layers.Dropout(dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape):
        features = inputs_shape[-1]
        if features is None:
            raise ValueError(f"The last dimension of the inputs must be known. Received: shape={tuple(inputs_shape)}")
        self.router_kernel = self.add_weight(
            shape=(features, self.num_experts),
            initializer=clone_initializer(self.dense_options.kernel_initializer, "router"),
            dtype="float32",
            autocast=False,
            name="router_kernel",
        )
        sizes = {"gate": (features, self.intermediate_dim)} if self.gated else {}
        sizes |= {"intermediate": (features, self.intermediate_dim), "output": (self.intermediate_dim, features)}
        for name, size in sizes.items():
            setattr(self, f"{name}_kernel", self._add_weights("kernel", name, size))
            setattr(self, f"{name}_bias", self._add_weights("bias", name, size[-1:]) if self.use_bias else None)
        self.built = True

    def _add_weights(self, kind, name, size):
        """A kernel or a bias for each expert, (E, *size), on which initializer and constraint act one by one.

        Of a kernel (E, D, F) they would take the experts for places of a convolution.
        """
        initializer, constraint = (getattr(self.dense_options, f"{kind}_{x}") for x in ("initializer", "constraint"))

        def draw_each(shape, dtype=None):
            draws = [clone_initializer(initializer, f"{name}/{kind}/{i}") for i in range(self.num_experts)]
            return ops.stack([draw(shape[1:], dtype=dtype) for draw in draws])

        def constrain_each(weights):
            return ops.stack([constraint(weights[i]) for i in range(self.num_experts)])

        return self.add_weight(
            shape=(self.num_experts, *size),
            initializer=draw_each,
            regularizer=getattr(self.dense_options, f"{kind}_regularizer"),
            constraint=constraint and constrain_each,
            name=f"{name}_{kind}",
        )

    def call(self, inputs, training=None, mask=None):
        check_mask(inputs, mask=mask)
        x = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (T, D)
        real = mask
        if mask is not None:  # one row of it may be for all
            real = ops.reshape(ops.broadcast_to(ops.cast(mask, "float32"), ops.shape(inputs)[:-1]), (-1,))
        logits = ops.matmul(ops.cast(x, "float32"), self.router_kernel)  # (T, E)
        probabilities, weights, chosen = route(logits, self.num_experts_per_token, self.normalize_weights)
        if training:
            self._add_losses(logits, probabilities, chosen, real)
        weights = ops.cast(weights, x.dtype)
        num_tokens = math.prod(size or 0 for size in inputs.shape[:-1])  # 0 where it is not known
        if training and self.capacity_factor is not None:
            y = self._within_capacity(x, weights, chosen, real)
        elif 0 < 4 * num_tokens * self.num_experts_per_token <= self.num_experts:  # copying weights has its price
            y = self._chosen_alone(x, weights, chosen, training)
        else:
            y = self._all_experts(x, weights, chosen, training)
        return ops.reshape(y, ops.shape(inputs))

    def _add_losses(self, logits, probabilities, chosen, real):
        if self.load_balancing_loss:
            self.add_loss(self.load_balancing_loss * balancing_loss(probabilities, chosen, real))
        if self.router_z_loss:
            self.add_loss(self.router_z_loss * z_loss(logits, real))

    def _all_experts(self, x, weights, chosen, training):
        """Every token through every expert, (E, T, D), most of it times 0."""
        y = self._transform(ops.expand_dims(x, 0), training)
        one_hot = ops.one_hot(chosen, self.num_experts, dtype=x.dtype)  # (T, k, E)
        weights = ops.einsum("tke,tk->te", one_hot, weights)
        # An expert that overflows in 16 bits must not reach tokens that are not its own: 0 * inf is no number.
        y = ops.where(ops.expand_dims(ops.transpose(weights), -1) > 0, y, 0.0)
        return ops.einsum("etd,te->td", y, weights)

    def _chosen_alone(self, x, weights, chosen, training):
        """Every token with the kernels of its own experts."""
        y = self._transform(x[:, None, None], training, chosen)  # (T, k, 1, D)
        return ops.einsum("tkd,tk->td", ops.squeeze(y, 2), weights)

    def _within_capacity(self, x, weights, chosen, real):
        """The tokens in the places (E, C, D) of their experts, as long as there are any left."""
        capacity = self._capacity(ops.shape(x)[0])
        places, token_at = places_in_experts(chosen, self.num_experts, capacity, real)
        # A token of zeros in front is in the places that stay empty; a place of zeros behind is of the dropped.
        x = ops.take(ops.pad(x, ((1, 0), (0, 0))), token_at, axis=0)
        y = ops.reshape(self._transform(x, True), (-1, x.shape[-1]))
        y = ops.take(ops.pad(y, ((0, 1), (0, 0))), places, axis=0)  # (T, k, D)
        return ops.einsum("tkd,tk->td", y, weights)

    def _capacity(self, num_tokens):
        share = self.capacity_factor * self.num_experts_per_token / self.num_experts
        if isinstance(num_tokens, int):
            return math.ceil(share * num_tokens - 1e-9)  # 2.0000000000000004 is 2
        return ops.cast(ops.ceil(share * ops.cast(num_tokens, "float64") - 1e-9), "int32")

    def _transform(self, x, training, experts=None):
        """The experts' networks of x (E or 1, T, D), or (T, 1, 1, D) with the experts (T, k) chosen for each token."""

        def project(name, x):
            y = ops.matmul(x, of_chosen(getattr(self, f"{name}_kernel")))
            bias = getattr(self, f"{name}_bias")
            return y if bias is None else y + ops.expand_dims(of_chosen(bias), -2)

        def of_chosen(weights):
            weights = ops.convert_to_tensor(weights)
            return weights if experts is None else ops.take(weights, experts, axis=0)

        hidden = project("intermediate", x)
        hidden = self.activation(project("gate", x)) * hidden if self.gated else self.activation(hidden)
        if self.dropout:
            hidden = self.dropout_layer(hidden, training=training)
        return project("output", hidden)

    def compute_mask(self, inputs, mask=None):
        return mask

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_experts": self.num_experts,
            "intermediate_dim": self.intermediate_dim,
            "num_experts_per_token": self.num_experts_per_token,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "capacity_factor": self.capacity_factor,
            "load_balancing_loss": self.load_balancing_loss,
            "normalize_weights": self.normalize_weights,
            "router_z_loss": self.router_z_loss,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "seed": self.seed,
            **self.dense_options.get_config(),
        }
