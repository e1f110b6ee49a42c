"""Training by libraries themselves: `libraries.py STEPS LIBRARY`, on ranks that torchrun starts."""

import os
import sys

import torch
import torch.distributed as dist
from model import STEPS, CausalLM, begin, end, loss_of, say

LIBRARY = sys.argv[2]
MICROSTEPS = 2


def deepspeed():
    """ZeRO-2 with accumulation, by the engine's own backward and step."""
    import deepspeed as library

    library.init_distributed("gloo")
    torch.manual_seed(dist.get_rank())
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICROSTEPS,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    model = CausalLM()
    engine, *_ = library.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _ in range(MICROSTEPS * STEPS):
        loss = loss_of(engine)
        engine.backward(loss)
        engine.step()
    return loss


def trl():
    """SFTTrainer on a Llama of two layers and a tokenizer of a few words."""
    import tempfile

    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(60))]
    known = models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>")
    tokenizer = Tokenizer(known)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": len(words)}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    rows = [{"text": " ".join(f"w{(row * at) % 60}" for at in range(16))} for row in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=MICROSTEPS,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
        )
        data = Dataset.from_list(rows)
        trainer = SFTTrainer(model, args=config, train_dataset=data, processing_class=fast)
        found = trainer.train()
    return torch.tensor(found.training_loss)


def torchtitan():
    """torchtitan's container, an optimizer of torch that steps others, and its clipping.

    Not Megatron-core: its layers, buffers and optimizers need CUDA.
    """
    from torchtitan.components.optimizer.optimizer import OptimizersContainer, ParamGroupConfig
    from torchtitan.distributed.utils import clip_grad_norm_

    model, kwargs = begin(), {"lr": 1e-3}
    norms = ParamGroupConfig(pattern=".*norm.*", optimizer_name="Adam", optimizer_kwargs=kwargs)
    others = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=kwargs)
    config = OptimizersContainer.Config(param_groups=[norms, others], implementation="for-loop")
    optimizers = OptimizersContainer(config, model_parts=[model])
    for _ in range(STEPS):
        optimizers.zero_grad()
        for _ in range(MICROSTEPS):
            loss = loss_of(model) / MICROSTEPS
            loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step()
    return loss


os.environ.setdefault("DS_ACCELERATOR", "cpu")
loss = globals()[LIBRARY]()
if dist.is_initialized():
    end(loss)
else:
    say(f"done {loss.item():.3f}")
