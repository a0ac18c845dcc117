"""Chat templates that write message after message, each without looking at the others.

Of such a template the text of a conversation is the texts of its messages, one behind the other, and what was
rendered and encoded for one turn holds for the next. A template is code: it is one of them when its syntax
tree shows that it cannot be anything else.
"""

from collections.abc import Collection
from typing import Final

from jinja2 import nodes

# They read what they name and keep nothing: no calls, no assignments, no loops.
_PLAIN: Final = (
    *(nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.Getitem, nodes.Getattr),
    *(nodes.If, nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not),
    *(nodes.Add, nodes.Concat),
)


def _fields(of: nodes.Expr, *names: str) -> tuple[nodes.Expr, ...]:
    """``of.name`` and ``of['name']`` for each name."""
    return (
        *(nodes.Getattr(of, name, "load") for name in names),
        *(nodes.Getitem(of, nodes.Const(name), "load") for name in names),
    )


# What a message's text may depend on beside that message: whether it is the first, and the role of the first.
_FIRST: Final = nodes.Getitem(nodes.Name("messages", "load"), nodes.Const(0), "load")
_KNOWN: Final = (*_fields(nodes.Name("loop", "load"), "first"), *_fields(_FIRST, "role"))
_END: Final = nodes.Name("add_generation_prompt", "load")


def writes_by_message(template: nodes.Template, variables: Collection[str]) -> bool:
    """Whether the template is one loop over the messages in which each is written by itself.

    A message's text depends on nothing but its role and content, whether it is the first, and the role of the
    first; what precedes all of them on ``variables`` and that role. Behind them stands nothing but the
    generation prompt, which depends on the same.
    """
    loops = [node for node in template.body if isinstance(node, nodes.For)]
    if len(loops) != 1 or not _is_plain_loop(loops[0]):
        return False
    [loop] = loops
    at = template.body.index(loop)
    ends = template.body[at + 1 :]
    if not all(
        isinstance(end, nodes.If) and end.test == _END and not (end.elif_ or end.else_) for end in ends
    ):
        return False
    assert isinstance(loop.target, nodes.Name)
    message = _fields(nodes.Name(loop.target.name, "load"), "role", "content")
    around = [*template.body[:at], *(node for end in ends for node in end.iter_child_nodes(exclude=["test"]))]
    return all(_reads_only(node, _KNOWN, variables) for node in around) and all(
        _reads_only(node, (*_KNOWN, *message), variables) for node in loop.body
    )


def _is_plain_loop(loop: nodes.For) -> bool:
    if loop.iter != nodes.Name("messages", "load") or not isinstance(loop.target, nodes.Name):
        return False
    return loop.target.name not in {"loop", "messages"} and not (loop.recursive or loop.else_ or loop.test)


def _reads_only(node: nodes.Node, known: Collection[nodes.Expr], names: Collection[str]) -> bool:
    """Whether it reads what is ``known`` and these names, and does nothing."""
    if node in known:
        return True
    if not isinstance(node, _PLAIN) or (isinstance(node, nodes.Name) and node.name not in names):
        return False
    return all(_reads_only(child, known, names) for child in node.iter_child_nodes())
