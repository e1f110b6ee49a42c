"""A small language model, and what the training scripts share."""

import sys

import torch
import torch.distributed as dist
from torch import nn

LAYERS = 3
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 14


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv_proj(x).chunk(3, -1)
        return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up_proj = nn.Linear(width, 2 * width)
        self.down_proj = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x)))


class DecoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.input_norm = nn.LayerNorm(width)
        self.self_attn = Attention(width)
        self.post_norm = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x):
        x = x + self.self_attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class Decoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed_tokens = nn.Embedding(128, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = self.embed_tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class CausalLM(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.model = Decoder(width)
        self.lm_head = nn.Linear(width, 128)

    def forward(self, x):
        return self.lm_head(self.model(x))


def say(text):
    """Write a line at once: two ranks share the output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def begin():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    return CausalLM()


def loss_of(model):
    tokens = torch.randint(0, 128, (2, 16))
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def end(loss):
    say(f"rank {dist.get_rank()} done {loss.item():.3f}")
    dist.destroy_process_group()
