"""Conversion of chat files (ShareGPT, OpenAI messages) to a Parquet dataset: `specpipe convert FILE`. Begin with
`convert_chats`.
"""
