"""Trains a small model on the CPU, saves checkpoints through Forebay, and goes on from the last one.

    python torch_resume.py /bb/me/run7 --steps 200 --every 10 [--durability memory|ssd|replica|pfs]

Kill the program at any moment (`kill -9`) and start it again with the same words: it goes on from
the last complete version, and ends with the numbers that a run without a kill ends with. The
directory needs a path rule, for versions that are published as a whole:

    [[rule]]
    path = "/me/run7/ckpt-{version}"
    group = "commit"
"""

import argparse
import os
import time

import torch
import torch.distributed.checkpoint as dcp

import forebay
from forebay.torch import RUNGS, ForebayReader, ForebayWriter, latest


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The data of one step, the same in each run."""
    generator = torch.Generator().manual_seed(step)
    x = torch.rand(64, 8, generator=generator)
    return x, x.sin().sum(dim=1, keepdim=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Trains, checkpoints, resumes.")
    arguments.add_argument("run", help="the run's directory below the mount")
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    arguments.add_argument("--durability", choices=RUNGS, default="ssd")
    arguments.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
    given = arguments.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = 0

    os.makedirs(given.run, exist_ok=True)
    found = latest(given.run)
    if found is not None:
        # A kill may have come between the last byte and the order to publish.
        forebay.commit(found)
        # Adam has its tensors once it has made a step.
        optimizer.zero_grad()
        model(batch(0)[0]).sum().mul(0).backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
        dcp.load(state, storage_reader=ForebayReader(found, prefetch=True), no_dist=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    print(f"from step {first}", flush=True)

    writer = None
    for step in range(first, given.steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(given.pause)
        if (step + 1) % given.every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            if writer is not None:
                writer.wait()
            writer = ForebayWriter(f"{given.run}/ckpt-{step + 1:06}", durability=given.durability)
            began = time.perf_counter()
            dcp.save(state, storage_writer=writer, no_dist=True)
            print(f"step {step + 1}: saved in {time.perf_counter() - began:.3f} s", flush=True)
    if writer is not None:
        writer.wait()
    parameters = sum(float(p.detach().double().sum()) for p in model.parameters())
    print(f"end at step {given.steps}: loss {loss.item():.9f}, parameters {parameters:.12f}", flush=True)


if __name__ == "__main__":
    main()
