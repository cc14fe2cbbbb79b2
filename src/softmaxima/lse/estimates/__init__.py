"""logsumexp from a few of very many scores, with a certificate."""
