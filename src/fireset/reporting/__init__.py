"""Report pages: one self-contained HTML file with figures, tables and the settings that reproduce the run."""

from fireset.reporting.page import check_report, write_page

__all__ = ["check_report", "write_page"]
