"""Train the demonstration model from nothing and write it to a folder.

python -m scripts.train_demo_model --out models/demo --minutes 55
"""

import argparse
import json
import os
from pathlib import Path

from scripts.demo_model.architecture import build_model
from scripts.demo_model.card import model_card
from scripts.demo_model.evaluation import accuracy
from scripts.demo_model.export import round_weights, save_model
from scripts.demo_model.parity import check_parity
from scripts.demo_model.training import Plan, train
from scripts.demo_model.vocabulary import train_tokenizer

ROOT = Path(__file__).resolve().parents[1]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "demo")
    parser.add_argument(
        "--minutes", type=float, default=55.0, help="training time; on a CPU, of each core's work"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes; default: one per core")
    parser.add_argument("--samples", type=int, default=512, help="held-out questions per kind")
    parser.add_argument("--compile", action="store_true", help="compile; needs a C++ compiler")
    parser.add_argument("--checkpoint", type=Path, help="file to save to and to continue from")
    return parser.parse_args()


def main() -> None:
    """Train, measure, save."""
    args = parse_args()
    cores = len(os.sched_getaffinity(0))
    workers = args.workers or (1 if args.device == "cuda" else min(cores, 8))
    plan = Plan(args.minutes, workers, args.device, args.seed, args.compile, args.checkpoint)
    tokenizer = train_tokenizer()
    difference = check_parity(build_model(tokenizer, args.seed), tokenizer)
    print(f"training path against transformers, fp32: largest difference {difference:.1e}")
    continued = args.checkpoint is not None and args.checkpoint.exists()
    model = train(plan, tokenizer)
    round_weights(model)
    scores = accuracy(model, tokenizer, args.samples)
    report = {"samples_per_kind": args.samples, "accuracy": scores}
    extra = {
        "accuracy.json": json.dumps(report, indent=2) + "\n",
        "README.md": model_card(model, scores, args.samples, args.minutes, workers, continued),
    }
    save_model(model, tokenizer, args.out, extra)
    print(f"saved to {args.out}")


if __name__ == "__main__":
    main()
