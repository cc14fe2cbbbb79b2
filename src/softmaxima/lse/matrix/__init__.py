"""log tr exp of matrices and operators."""
