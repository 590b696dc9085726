"""Values of a series as packed arrays: hot blocks, sealed tiles, pooled levels and the heatmap's grid."""
