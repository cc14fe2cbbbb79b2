"""The laboratory of softmaxima: its command, comparisons, calibration, benchmark and studies."""
