"""Bring a database to the newest schema."""

from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

from alembic import command
from alembic.config import Config


def configuration(url: str) -> Config:
    """Alembic's configuration for the database at ``url`` (as in Database); there is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = url
    return config


def upgrade(url: str) -> None:
    """Run all migrations that the database lacks. Of two processes one waits for the other.

    In a thread of its own, because migrations run an event loop and the caller may already be in one.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(command.upgrade, configuration(url), "head").result()
