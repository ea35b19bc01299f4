"""Supervised fine-tuning: the model learns the format of tool calls from the games that were played."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from renderers import RendererConfig, create_renderer
from renderers.base import build_training_sample
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from examples.demo.games import Game


def fine_tune(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    games: Sequence[Game],
    *,
    renderer: RendererConfig,
    steps: int,
    seed: int,
    on_step: Callable[[int, float], None],
    batch_size: int = 32,
    learning_rate: float = 1e-2,
) -> None:
    """Trains the model on what the player said in the games, and on nothing else.

    A game must end with a message of the environment: the template renders an assistant message that comes last
    differently, with an empty block of reasoning.

    Args:
        model: Trained in place.
        tokenizer: The model's tokenizer.
        games: Whole games; their prompts present the tools of each.
        renderer: How messages become tokens, as in the rollouts.
        steps: Optimizer steps.
        seed: Of the order of the games.
        on_step: Called with the step, from 1, and the loss.
        batch_size: Games a step.
        learning_rate: At the first step; it falls to a twentieth.
    """
    writer = create_renderer(tokenizer, renderer)
    samples = [
        build_training_sample(writer, cast("list[Any]", game.messages), tools=cast("list[Any]", game.tools))
        for game in games
    ]
    rows = [(torch.tensor(s.token_ids), torch.tensor(s.loss_mask, dtype=torch.bool)) for s in samples]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.05, total_iters=steps)
    rng = random.Random(seed)
    model.train()
    order: list[int] = []
    for step in range(1, steps + 1):
        if len(order) < batch_size:
            order = rng.sample(range(len(rows)), len(rows))
        batch = [rows[order.pop()] for _ in range(batch_size)]
        ids = pad_sequence([ids for ids, _ in batch], batch_first=True)
        mask = pad_sequence([mask for _, mask in batch], batch_first=True)
        attention = pad_sequence([torch.ones_like(ids) for ids, _ in batch], batch_first=True)
        hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state
        said = mask[:, 1:]
        loss = F.cross_entropy(model.lm_head(hidden[:, :-1][said]), ids[:, 1:][said])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        on_step(step, loss.item())
