"""The report page: runs in, one self-contained HTML page out."""
