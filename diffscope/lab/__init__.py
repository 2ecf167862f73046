"""Where models are trained, scored and swept."""
