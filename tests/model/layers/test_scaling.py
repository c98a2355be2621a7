"""Sizes of initial matrices and residual connections, against published factors and Glorot's formula."""

import numpy as np
import pytest

from keras_transformer.model.layers.decoder import DecoderLayer
from keras_transformer.model.layers.encoder import EncoderLayer
from keras_transformer.model.layers.scaling import depth_scale


@pytest.mark.parametrize(
    ("layers", "encoder", "decoder"),
    [(4, (1.249, 0.564), (1.861, 0.380)), (6, (1.418, 0.497), (2.060, 0.343))],
)
def test_deepnorm_has_the_published_factors(layers, encoder, decoder):
    # Wang et al. (2022), table of alpha and beta, for as many encoder as decoder layers.
    for index in (0, layers - 1):
        for published, is_decoder in ((encoder, False), (decoder, True)):
            alpha, gain, value_gain = depth_scale("deepnorm", index, layers, layers, decoder=is_decoder)
            assert (round(alpha, 3), round(value_gain, 3)) == published
            assert gain == 1


def test_ds_init_divides_all_matrices_of_layer_l_by_its_square_root():
    for is_decoder in (False, True):
        scales = [depth_scale("ds_init", index, 5, 3, decoder=is_decoder) for index in (0, 3)]
        assert scales == [(1, 1, 1), (1, 0.5, 0.5)]
    assert depth_scale("none", 3, 5, 3, decoder=True) == (1, 1, 1)


def test_the_factors_reach_every_matrix_of_a_layer():
    sizes = {"num_heads": 3, "key_dim": 31, "value_dim": 37, "d_ff": 101}
    layer = DecoderLayer(**sizes, attention_init="separate", depth_scale=(1.7, 0.7, 0.9))
    layer.build((None, None, 97), (None, None, 97))
    gains = {"query": 0.7, "key": 0.7, "value": 0.9, "output": 0.9, "inner": 0.9, "outer": 0.9}
    kernels = [weight for weight in layer.weights if weight.name == "kernel"]
    assert len(kernels) == 10
    for kernel in kernels:
        limit = gains[kernel.path.split("/")[-2]] * np.sqrt(6 / sum(kernel.shape))
        assert 0.97 * limit < np.abs(kernel.numpy()).max() <= limit * (1 + 1e-6), kernel.path
    residuals = [getattr(layer, f"{name}_residual") for name in (*layer.attentions, "feed_forward")]
    assert [residual.alpha for residual in residuals] == [1.7] * 3


@pytest.mark.parametrize(("init", "cross", "cross_query"), [("stacked", 3, 2), ("stacked_all", 4, 4)])
def test_stacked_matrices_have_the_values_of_one_glorot_matrix(init, cross, cross_query):
    attentions = [(EncoderLayer, "self", 4), (DecoderLayer, "self", 4), (DecoderLayer, "cross", cross)]
    for cls, name, columns in attentions:
        layer = cls(num_heads=3, key_dim=32, d_ff=5, attention_init=init)
        layer.build(*[(None, None, 96)] * (2 if cls is DecoderLayer else 1))
        attention = getattr(layer, f"{name}_attention")
        for part in ("query", "key", "value"):
            own = cross_query if (name, part) == ("cross", "query") else columns
            largest = np.abs(getattr(attention, f"{part}_projection").kernel.numpy()).max()
            assert largest == pytest.approx(np.sqrt(6 / (own * 96)), rel=0.01)


def test_an_unknown_initialization_is_refused():
    with pytest.raises(
        ValueError, match="`attention_init` must be one of .*'stacked', 'stacked_all', 'separate'.*'glorot'"
    ):
        EncoderLayer(num_heads=3, key_dim=5, d_ff=7, attention_init="glorot")
