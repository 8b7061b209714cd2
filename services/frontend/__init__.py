"""OpenAI requests to tokens and tokens back to OpenAI answers, without torch and transformers.

In:
config       settings: where media may come from, limits
render       `Frontend`: request → `RenderedRequest` (token ids, media spans, sampling, media bytes)
model_info   what a model directory says: lengths, EOS, defaults, templates, processor options
pooler       what it says of vectors, scores or classes that are answered instead of text
messages     chat messages checked and sorted into template input and media
items        media fetched, measured and named by content
kinds        kinds of media: how a picture, a clip or audio is checked, measured and named
media        a media URL to bytes: data:, http(s), file://, within limits
spill        media of requests under way: bounded in memory, in files beyond
audio        what a WAV file's header says, and its samples in mono at the model's rate
addresses    which network addresses may be fetched from
references   media a client may refer to by uuid
image        a picture's size without decoding it, and its canonical decoding to RGB
clips        clips read by FFmpeg in processes of their own; which frames are taken
bounded_threads  threads for work that may take long, with a bound on what waits
families     per model family: how many tokens a picture or clip becomes
template     chat templates, as transformers renders them
guard        special tokens in a client's text stay plain text
chat_text    template and guard together: a request to its prompt as text
pair_template  a query and a document as a reranker is asked about them
pooling      requests for vectors, scores and classes to prompts
prompt       the prompt's text to token ids, placeholders expanded
tool_use     which tools are shown, may be called, or must be
grammar      what an output must match; json_schema: schemas; call_grammar: calls that are forced
sampling     sampling parameters checked, defaults filled in

Out:
tokenizer    tokenizer and incremental detokenizer
stopping     stop strings across token boundaries
parsing      tool calls and reasoning out of the text, family by family
output       `OutputAssembler`: engine outputs → text per choice, finish reasons, usage
logprobs     log-probabilities in OpenAI's forms
answer_form  what the answers of one request share
chunks       `ChunkBuilder`: chunks of a stream
answers      `AnswerBuilder`: whole answers
answering    `Answering`: assembler and builders together, from outputs to bytes

responses    OpenAI's Responses API, as chats and from what chats gain
anthropic    Anthropic's Messages API, likewise

options      the flags of every process that has a frontend
"""
