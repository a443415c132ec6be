"""Tiny data and models for the scripts of Hugging Face's libraries, made in place."""

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel


def bert():
    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def gpt():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def sentences(rows=64, length=8, words=40, seed=0):
    tokens = torch.randint(2, words, (rows, length), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": int(row[0] > words // 2)} for row in tokens]


def texts(rows=48, length=10, words=32, seed=0):
    tokens = torch.randint(1, words, (rows, length), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row.clone()} for row in tokens]
