"""The neutral conversation every protocol is read into and every family renders.

It is deepseek-recipe's own: messages with roles ``system, user, assistant, tool, latest_reminder``, text
content, tools, tool choice, response format and thinking mode. We add names, not a second model of the same.
"""

from deepseek_recipe import Conversation, Message

__all__ = ["Conversation", "Message", "continued", "has_tools", "offers_tools"]


def continued(conversation: Conversation) -> Message | None:
    """The message that the answer goes on with; None where it begins one.

    There may be no message at all: deepseek-recipe leaves out a system message without text.
    """
    last = conversation.messages[-1:]
    return last[0] if last and last[0].prefix else None


def offers_tools(conversation: Conversation) -> bool:
    """Whether the model may call a tool."""
    return bool(conversation.tools) and conversation.tool_choice != "none"


def has_tools(conversation: Conversation) -> bool:
    """Whether tools are offered to the model, or were used earlier in the conversation."""
    used = any(message.tool_calls or message.role == "tool" for message in conversation.messages)
    return used or offers_tools(conversation)
