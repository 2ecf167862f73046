"""Training matched models, one or a whole cohort."""
