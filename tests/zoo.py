"""Small models of well-known architectures, built from their configs with random weights, and a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
VISION: dict[str, Any] = {**SIZES, "image_size": 16, "patch_size": 4}
del VISION["vocab_size"]

Entry = tuple[nn.Module, dict[str, Any]]


def tokens(length: int = 8, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(3, vocabulary, (2, length))


def language(model: nn.Module) -> Entry:
    """A causal language model with two sequences to predict."""
    ids = tokens()
    return model, {"input_ids": ids, "labels": ids}


def images(model: nn.Module, size: int = 16, count: int = 2) -> Entry:
    """An image classifier with a few images."""
    return model, {"pixel_values": torch.randn(count, 3, size, size), "labels": torch.arange(count)}


def t5() -> Entry:
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return language(hf.T5ForConditionalGeneration(config))


def bert() -> Entry:
    model, batch = language(hf.BertForMaskedLM(hf.BertConfig(**SIZES, max_position_embeddings=32)))
    batch["attention_mask"] = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    return model, batch


def deberta() -> Entry:
    config = hf.DebertaV2Config(
        **SIZES,
        max_position_embeddings=32,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        num_labels=3,
    )
    return hf.DebertaV2ForSequenceClassification(config), {
        "input_ids": tokens(),
        "attention_mask": torch.tensor([[1] * 8, [1] * 6 + [0] * 2]),
        "labels": torch.tensor([0, 2]),
    }


def gpt2() -> Entry:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return language(hf.GPT2LMHeadModel(config))


def llama() -> Entry:
    return language(hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_key_value_heads=2)))


def gemma2() -> Entry:
    return language(hf.Gemma2ForCausalLM(hf.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8)))


def mamba() -> Entry:
    config = hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
    return language(hf.MambaForCausalLM(config))


def mixtral() -> Entry:
    config = hf.MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
    )
    return language(hf.MixtralForCausalLM(config))


def qwen2_moe() -> Entry:
    config = hf.Qwen2MoeConfig(
        **SIZES,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    return language(hf.Qwen2MoeForCausalLM(config))


def vit() -> Entry:
    return images(hf.ViTForImageClassification(hf.ViTConfig(**VISION, num_labels=5)))


def swin() -> Entry:
    config = hf.SwinConfig(
        image_size=16,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=5,
    )
    return images(hf.SwinForImageClassification(config))


def resnet() -> Entry:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    return images(hf.ResNetForImageClassification(config), size=32, count=4)


def clip() -> Entry:
    text = {**SIZES, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 63}
    config = hf.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)
    ids = tokens()
    ids[:, -1] = 63  # the text's vector is read at its end token
    return hf.CLIPModel(config), {
        "input_ids": ids,
        "pixel_values": torch.randn(2, 3, 16, 16),
        "return_loss": True,
    }


def whisper() -> Entry:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return hf.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(2, 16, 32),
        "labels": tokens(),
    }


def wav2vec2() -> Entry:
    """Ends in a CTC loss, whose table of -inf is no fault."""
    config = hf.Wav2Vec2Config(
        **{**SIZES, "vocab_size": 16},
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        pad_token_id=0,
        ctc_loss_reduction="mean",
        mask_time_prob=0.0,
    )
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 400), "labels": tokens(5, 16)}


ZOO: dict[str, Callable[[], Entry]] = {
    build.__name__: build
    for build in (
        t5,
        bert,
        deberta,
        gpt2,
        llama,
        gemma2,
        mamba,
        mixtral,
        qwen2_moe,
        vit,
        swin,
        resnet,
        clip,
        whisper,
        wav2vec2,
    )
}
