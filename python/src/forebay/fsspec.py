"""`forebay://` for fsspec: a local file system that knows where its files are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from fsspec.implementations.local import LocalFileSystem

import forebay

from ._types import Location, Progress, Result


class ForebayFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """`forebay:///bb/run7/x` is the file `/bb/run7/x`. Reads and writes are those of the mount."""

    protocol = "forebay"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        # Older versions of fsspec know no other name than `file:` here.
        for prefix in ("forebay://", "forebay:"):
            if isinstance(path, str) and path.startswith(prefix):
                path = path[len(prefix) :]
        return super()._strip_protocol(path)

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"forebay://{self._strip_protocol(name)}"

    def where(self, path: str) -> list[Location]:
        """`forebay.where`."""
        return forebay.where(self._strip_protocol(path))

    def stage_in(self, path: str, progress: Optional[Callable[[Progress], object]] = None) -> Result:
        """`forebay.stage_in`."""
        return forebay.stage_in(self._strip_protocol(path), progress=progress)

    def stage_out(
        self, path: str, wait: bool = True, progress: Optional[Callable[[Progress], object]] = None
    ) -> Result:
        """`forebay.stage_out`."""
        return forebay.stage_out(self._strip_protocol(path), wait=wait, progress=progress)
