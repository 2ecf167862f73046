"""Row statistics of a differential layer: diffscope beside what a user would use instead."""
