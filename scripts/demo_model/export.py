"""Writing the model folder, whole or not at all."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from scripts.demo_model.architecture import build_image_processor


def save_model(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    extra: dict[str, str],
) -> None:
    """Replace `folder` by the model in bf16, its tokenizer, its image processor and `extra` text
    files by name. Readers see the old folder or the new one."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    copy.deepcopy(model).to("cpu", torch.bfloat16).save_pretrained(fresh)
    # Batches of the evaluation leave their padding in the tokenizer; the file must not ask for it.
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(fresh)
    # The class name that transformers 4 and 5 both know.
    _edit_json(fresh / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    _save_processor(fresh)
    for name, text in extra.items():
        (fresh / name).write_text(text)
    for file in fresh.iterdir():
        file.chmod(0o644)
    _swap(fresh, folder)


@torch.no_grad()
def round_weights(model: Qwen2_5_VLForConditionalGeneration) -> None:
    """Give the fp32 model the values that its bf16 file will hold."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))


def _save_processor(folder: Path) -> None:
    build_image_processor().save_pretrained(folder)
    names = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    }
    _edit_json(folder / "preprocessor_config.json", names)


def _edit_json(path: Path, changes: dict[str, Any]) -> None:
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _swap(fresh: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
