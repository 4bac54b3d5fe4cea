"""A decoder in the style of Llama with half weights. Its RMS norm squares in the activations' dtype."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, VOCABULARY = 32, 40


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)  # 256 squared is 65,536
        return x * torch.rsqrt(mean_square + 1e-5) * self.weight


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH))
        self.norm = RMSNorm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(self.norm(x + self.mlp(x)))


def build_model() -> nn.Module:
    model = Decoder()
    with torch.no_grad():
        model.mlp[2].bias[7] = 700.0  # the massive activation of one channel
    return model


def build_batch() -> dict[str, Tensor]:
    tokens = torch.arange(40).reshape(4, 10)
    return {"tokens": tokens, "targets": tokens.roll(-1, 1)}


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["tokens"]).flatten(0, 1).float(), batch["targets"].flatten())
