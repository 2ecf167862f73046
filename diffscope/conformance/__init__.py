"""Check a model's attention against the design of its family."""

from diffscope.conformance.checks import check
from diffscope.conformance.report import Finding, Report

__all__ = ["Finding", "Report", "check"]
