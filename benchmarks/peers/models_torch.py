"""torch.nn.Transformer, with one embedding matrix for both sides and the output."""

import math

import torch
from torch import nn

from peers.timing import ON_GPU, THREADS
from peers.work import BETA_1, BETA_2, DROPOUT, EPSILON, LEARNING_RATE, MAX_POSITIONS

DEVICE = "cuda" if ON_GPU else "cpu"


class TorchTransformer(nn.Module):
    """Embeddings, sinusoids and `torch.nn.Transformer` (post-norm, ReLU).

    Args:
        size: `Size`.
    """

    def __init__(self, size):
        super().__init__()
        self.scale = math.sqrt(size.d_model)
        self.embedding = nn.Embedding(size.vocab_size, size.d_model)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.body = nn.Transformer(
            size.d_model,
            size.num_heads,
            size.num_layers,
            size.num_layers,
            size.d_ff,
            DROPOUT,
            activation="relu",
            batch_first=True,
            norm_first=False,
        )
        for layer in [*self.body.encoder.layers, *self.body.decoder.layers]:
            layer.dropout.p = 0.0  # inside the feed-forward layers no peer has any
        self.dropout = nn.Dropout(DROPOUT)
        wavelengths = 10000 ** (torch.arange(0, size.d_model, 2) / size.d_model)
        angles = torch.arange(MAX_POSITIONS)[:, None] / wavelengths
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1))

    def embedded(self, ids):
        """Returns float, `(batch, length, d_model)`, of int64 ids, `(batch, length)`."""
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, source, target):
        """Returns logits, `(batch, length, vocab_size)`, of two int64 tensors, `(batch, length)`."""
        padding = source == 0
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        hidden = self.body(
            self.embedded(source),
            self.embedded(target),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return hidden @ self.embedding.weight.T


def adam(model):
    """Returns the optimizer of all PyTorch peers, whose whole update is one operation as ours is."""
    betas = (BETA_1, BETA_2)
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=betas, eps=EPSILON, fused=True)


def num_parameters(model):
    """Returns int, the number of trainable parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def prepare():
    """Sets threads, seed and, on a GPU, products of float32 in TF32, as XLA computes them."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if ON_GPU:
        torch.set_float32_matmul_precision("high")


def gpu_memory():
    """Returns int, the peak of the GPU's memory in bytes, of tensors."""
    return torch.cuda.max_memory_allocated()
