"""Public model names, each with the recipe and the engine that serve it."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.api import Engine
from gateway.refusal import ModelUnknown
from recipe.registry import Recipe


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model that clients may name."""

    name: str
    recipe: Recipe
    engine: Engine

    @property
    def context_tokens(self) -> int:
        """Longest prompt and answer together, in tokens."""
        return self.recipe.context_tokens


class Catalog:
    """The models of this gateway by public name."""

    def __init__(self, models: tuple[ServedModel, ...]) -> None:
        self._models: Mapping[str, ServedModel] = {model.name: model for model in models}

    def find(self, name: str) -> ServedModel:
        """Resolve a public name.

        Raises:
            ModelUnknown: nobody serves it.
        """
        model = self._models.get(name)
        if model is None:
            raise ModelUnknown(name)
        return model

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All models, in the order they were given."""
        return tuple(self._models.values())
