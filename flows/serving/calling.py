"""The class of the project's flows."""

from typing import Any

from prefect import Flow
from prefect.settings import get_current_settings


class OwnFlow(Flow[..., Any]):
    """A flow that makes Prefect's folder when it is called. Without the folder Prefect's server never starts."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow as Prefect does."""
        get_current_settings().home.mkdir(parents=True, exist_ok=True)
        return super().__call__(*args, **kwargs)

    def with_options(self, *args: Any, **kwargs: Any) -> "OwnFlow":
        """Return a copy with other options, as Prefect does, but of this class."""
        changed = super().with_options(*args, **kwargs)
        changed.__class__ = type(self)
        return changed  # type: ignore[return-value]
