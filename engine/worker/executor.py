"""The model in the engine core's own process: one process, half a GiB and seconds of start-up less a worker.

vLLM turns its own single-process executor into a child on CPUs, because OpenMP must know its cores before it
starts. Here the engine core's threads take their cores before the model is loaded, which does the same.
"""

import os

import torch
from vllm import envs
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InlineExecutor(UniProcExecutor):  # type: ignore[misc]  # vllm is untyped here
    """vLLM's single-process executor on the cores that ``VLLM_CPU_OMP_THREADS_BIND`` names ("0,1")."""

    def _init_executor(self) -> None:
        bind = envs.VLLM_CPU_OMP_THREADS_BIND
        if bind not in ("auto", "nobind"):
            cores = {int(core) for core in bind.split(",")}
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(len(cores))
        super()._init_executor()
