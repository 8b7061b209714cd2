"""A request's text: chats written by a template, made harmless, and turned into token ids.

messages         chat messages checked and sorted into template input and media
template         chat templates, as transformers renders them
other_templates  templates that requests bring; how a reranker is asked about a pair
guard            special tokens in a client's text stay plain text
chat_text        template and guard together: a request to its prompt as text
maker            `PromptMaker`: texts and token lists to prompts, within the model's length
tokenizing       one text to token ids, its placeholders expanded
raw              RTP-LLM's raw prompts with pictures in them
"""
