#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/fixtures/<name>: small random checkpoints and the logits of their reference implementation.

Needs torch, transformers, safetensors and gguf. Every directory holds config.json (both generations of keys occur),
safetensors (one of them sharded) and reference.safetensors with

    tokens       [n] int64
    logits       [n, vocab] float32, the reference classes in float32 as they are
    logits_kv16  the same with K (after RoPE) and V rounded to bf16, as a KV cache of kv2 holds them

Three of them are written as OUT_DIR/gguf/<name>.gguf too, as converters do it: rows of q and k permuted for llama, llama3
scaling as the tensor rope_freqs.weight. Norms and biases are random and large, so that a forgotten or swapped one shows. usage: make_model_fixtures.py OUT_DIR
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

VOCAB = 251
COMMON = dict(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=512, bos_token_id=1)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def old_keys(config: dict) -> dict:
    """rope_parameters and dtype as older versions wrote them."""
    rope = dict(config.pop("rope_parameters", None) or {})
    config["rope_theta"] = rope.pop("rope_theta", 10000.0)
    kind = rope.pop("rope_type", "default")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, "rope_type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype", "float32")
    return config


FIXTURES = {
    # name: (class, config, dtype, n_tokens, shards, old generation of keys)
    "llama-llama3-rope": (LlamaForCausalLM, LlamaConfig(
        **COMMON, intermediate_size=112, num_hidden_layers=3, rms_norm_eps=1e-5, eos_token_id=[2, 7],
        rope_parameters=dict(rope_theta=10000.0, **LLAMA3), tie_word_embeddings=False), torch.float32, 140, True, False),
    "llama-linear-rope-bias": (LlamaForCausalLM, LlamaConfig(
        **COMMON, intermediate_size=96, num_hidden_layers=2, rms_norm_eps=1e-6, eos_token_id=2, attention_bias=True,
        rope_parameters=dict(rope_theta=5000.0, rope_type="linear", factor=2.5), tie_word_embeddings=True),
        torch.float32, 130, False, True),
    "qwen2-tied": (Qwen2ForCausalLM, Qwen2Config(
        **COMMON, intermediate_size=112, num_hidden_layers=3, rms_norm_eps=1e-6, eos_token_id=3,
        use_sliding_window=False, tie_word_embeddings=True, rope_parameters=dict(rope_theta=1e6, rope_type="default")),
        torch.bfloat16, 133, False, True),
    "qwen2-untied": (Qwen2ForCausalLM, Qwen2Config(
        **{**COMMON, "num_attention_heads": 2, "num_key_value_heads": 1}, intermediate_size=80, num_hidden_layers=2,
        rms_norm_eps=1e-6, eos_token_id=3, tie_word_embeddings=False,
        rope_parameters=dict(rope_theta=10000.0, rope_type="default")), torch.float32, 129, False, False),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        **COMMON, head_dim=32, intermediate_size=112, num_hidden_layers=3, rms_norm_eps=1e-6, eos_token_id=5,
        tie_word_embeddings=True, rope_parameters=dict(rope_theta=1e6, rope_type="default")),
        torch.bfloat16, 150, False, False),
}


class Bf16Cache(DynamicCache):
    """K and V pass through bf16."""

    def update(self, k, v, *args, **kwargs):
        return super().update(k.bfloat16().float(), v.bfloat16().float(), *args, **kwargs)


def randomise(model, generator) -> None:
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            p.data = 1.0 + 0.4 * noise
        elif name.endswith("bias"):
            p.data = 0.7 * noise + 0.2
        elif "embed_tokens" in name:
            p.data = 0.3 + noise
        else:
            p.data = 1.2 / p.shape[-1] ** 0.5 * noise


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name: str) -> str:
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"


def permuted(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Halves (i, i + d/2) become neighbours (2i, 2i + 1)."""
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_factors(config) -> np.ndarray:
    """What the inverse frequencies are divided by, from the scaling rule itself."""
    rope, d = config.rope_parameters, config.head_dim
    wavelength = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, d, 2) / d)
    turns = rope["original_max_position_embeddings"] / wavelength
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = (turns - low) / (high - low)
    return np.where(turns < low, factor, np.where(turns > high, 1.0, 1 / ((1 - smooth) / factor + smooth))).astype(np.float32)


def write_gguf(model, arch: str, path: pathlib.Path) -> None:
    c = model.config
    path.parent.mkdir(parents=True, exist_ok=True)
    w = gguf.GGUFWriter(path, arch)
    w.add_name(path.stem)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if arch == "qwen3":
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
    w.add_uint32("tokenizer.ggml.eos_token_id", 2)
    if c.rope_parameters["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(c))
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            p = permuted(p, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads)
        if p.dtype == torch.bfloat16 and p.dim() == 2:
            raw = p.contiguous().view(torch.uint8).numpy()
            w.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(gguf_name(name), p.float().contiguous().numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


WITH_GGUF = {"llama-llama3-rope": "llama", "qwen2-tied": "qwen2", "qwen3": "qwen3"}


def make(name: str, out: pathlib.Path, seed: int) -> None:
    cls, config, dtype, n_tokens, shards, old = FIXTURES[name]
    generator = torch.Generator().manual_seed(seed)
    model = cls(config)
    randomise(model, generator)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    model = model.to(dtype)
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*"):
        stale.unlink()
    model.save_pretrained(directory, max_shard_size="200KB" if shards else "5GB")
    path = directory / "config.json"
    written = json.loads(path.read_text())
    written.pop("transformers_version", None)
    path.write_text(json.dumps(old_keys(written) if old else written, indent=1) + "\n")

    generation = directory / "generation_config.json"
    generation.write_text(json.dumps({k: v for k, v in json.loads(generation.read_text()).items()
                                      if k != "transformers_version"}, indent=1) + "\n")
    if name in WITH_GGUF:
        write_gguf(model, WITH_GGUF[name], out / "gguf" / f"{name}.gguf")

    # What is committed is what is run: reload, in float32.
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.randint(0, VOCAB, (1, n_tokens), generator=generator)
    with torch.no_grad():
        logits = reference(tokens, use_cache=False).logits[0]
        logits_kv16 = reference(tokens, past_key_values=Bf16Cache(config=reference.config)).logits[0]
    save_file({"tokens": tokens[0].contiguous(), "logits": logits.contiguous(), "logits_kv16": logits_kv16.contiguous()},
              directory / "reference.safetensors")
    for f in directory.glob("*.safetensors"):
        f.chmod(0o644)
    size = sum(f.stat().st_size for f in directory.glob("*"))
    scale = logits.abs().max()
    print(f"{name}: {size} bytes, max |logit| {scale:.2f}, "
          f"bf16 cache moves {((logits - logits_kv16).abs().max() / scale):.1e} of it")
    assert size < 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    for i, name in enumerate(FIXTURES):
        make(name, args.out, seed=100 + i)


if __name__ == "__main__":
    main()
