"""Inside vLLM's own processes; alone imports vllm and torch. Started as a process, never imported.

Issue 2 has the connector over the prefix store and the prefill's attestation. The journal with decode's
attestations, the scheduler on our cost law, tombstones and quotas come with the issues after it.
"""
