"""What a person sees: progress, tables, plots, one HTML page. `write` makes all files of a run."""

from .artefacts import RESULTS, Report, build, clean, show, write
from .progress import Progress, Silent, progress

__all__ = ["RESULTS", "Progress", "Report", "Silent", "build", "clean", "progress", "show", "write"]
