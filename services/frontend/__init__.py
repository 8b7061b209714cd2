"""OpenAI requests to tokens and tokens back to OpenAI answers, without torch and transformers.

In:
render            `Frontend`: request → `RenderedRequest`, all of the below together
requests          the model that a request names, and what workers get of it
prompts           chats as their template writes them; texts to token ids, placeholders expanded
media             media fetched, measured and named by content
clips             clips read by FFmpeg in processes of their own; which frames are taken
audio             what a file's header says, and its samples in mono at the model's rate
families          per model family: how many tokens a picture, clip or audio becomes
sampling          sampling parameters checked, defaults filled in
tool_use          which tools are shown, may be called, or must be
grammars          what an output must match
pooling           requests for vectors, scores and classes to prompts

Out:
spec              what a request wants of its answer, remembered until that is written
tokenizer         tokenizer and incremental detokenizer
parsing           tool calls and reasoning out of the text, family by family
answers           from engine outputs to the bytes of an answer

Other APIs, as chats and from what chats gain:
responses         OpenAI's Responses API
anthropic         Anthropic's Messages API
agent_requests    what both share

models            the models that one server renders for, by the names that requests give
model_folder      where a model lies; model_info: what its files say
config            settings: where media may come from, limits
options           the flags of every process that has a frontend
"""
