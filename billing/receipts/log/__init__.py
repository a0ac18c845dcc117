"""The receipt log: every settled request's receipt is a leaf of one Merkle tree, whose heads are signed."""
