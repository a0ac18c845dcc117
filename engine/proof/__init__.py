"""What a worker proves: signed attestations, certificates, and the chained hash of a prefix.

Pure (no I/O, no clock) and standing on nothing of ours, so that every package may read a proof.
"""
