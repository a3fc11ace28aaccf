"""A first script, to try the command line with (docs/use/quickstart.md): it trains until it is stopped."""

import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

import elasticjob


@record  # the text of an exception reaches the job's status
def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # each rank has samples of its own
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(1, 1_000_000):
        x = torch.randn(64, 1)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        elasticjob.report_progress(step)  # shows progress; lets `elasticjob stacks` ask this worker
        if dist.get_rank() == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.6f}, {dist.get_world_size()} ranks", flush=True)
        time.sleep(0.05)
    dist.destroy_process_group()


main()
