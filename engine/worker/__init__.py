"""Inside vLLM's own processes; alone imports vllm and torch. Started as a process, never imported.

Its connector stands over the prefix store, its scheduler on our policy; what it does it attests in a journal,
which `routes` serves beside vLLM's own endpoints.
"""
