"""The zoo in torch: DCN-v2, DLRM, MMoE, DIN."""
