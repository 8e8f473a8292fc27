"""A question and a video in, an answer out: `ask`, watched videos, chats, and what they share."""
