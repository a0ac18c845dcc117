"""Public model names, each with the recipe and the engine that serve it."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.api import Engine
from gateway.refusal import ModelUnknown
from gateway.snapshot import AliasSnapshot
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
    """The models of this gateway by public name, and by the aliases that the operator gives them.

    Whatever name a request uses, it is the served model's that is limited, held, billed and shown in the
    event, that a key's list of models is asked about, and that the answer carries.
    """

    def __init__(self, models: tuple[ServedModel, ...], aliases: AliasSnapshot) -> None:
        self._models: Mapping[str, ServedModel] = {model.name: model for model in models}
        self.aliases = aliases

    def find(self, name: str) -> ServedModel:
        """Resolve a public name: a served model's own, else by the aliases.

        Raises:
            ModelUnknown: nobody serves it, or who answers to it is not served here.
            StoreUnavailable: no model has this name, and the aliases have not been read yet.
        """
        model = self._models.get(name)
        if model is None:
            answers = self.aliases.aliases.resolve(name)
            model = None if answers is None else self._models.get(answers)
            if model is None:
                raise ModelUnknown(name, answers)
        return model

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All models, in the order they were given."""
        return tuple(self._models.values())

    @property
    def named(self) -> Mapping[str, ServedModel]:
        """Every name that can be listed: of each model, and exact aliases of those; patterns name none.

        Raises:
            StoreUnavailable: the aliases have not been read yet.
        """
        exact = {row.pattern: row.model for row in self.aliases.aliases.rows if row.exact}
        others = {name: self._models[model] for name, model in exact.items() if model in self._models}
        return {**self._models, **others, **self._models}
