"""The report of one study: page, timeline, Markdown, JSON, in one folder."""
